#include "tests/fakes/exchange_group.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"

namespace pagoda::kernels {
namespace {

class ExchangeGroup final : public DeviceGroup {
 public:
  explicit ExchangeGroup(const DeviceGroupOptions& options) : options_(options) {}

  int rank() const override { return options_.rank; }
  int num_ranks() const override { return options_.num_ranks; }
  absl::string_view transport() const override { return "exchange"; }

  absl::Status AllReduceSum(const AllReduceParams& p) override {
    PAGODA_RETURN_IF_ERROR(Validate(p));
    PAGODA_RETURN_IF_ERROR(CheckFloat(p.dtype));
    std::vector<double> sums;
    PAGODA_RETURN_IF_ERROR(Sum(static_cast<const float*>(p.x), p.count, &sums));
    for (int64_t i = 0; i < p.count; ++i) static_cast<float*>(p.y)[i] = static_cast<float>(sums[i]);
    return absl::OkStatus();
  }

  bool SupportsAllReduceNorm(const AllReduceNormParams& p) const override {
    return Validate(p).ok() && p.dtype == DType::kFloat32;
  }
  absl::Status AllReduceNorm(const AllReduceNormParams& p) override;

  absl::Status AllGather(const AllGatherParams& p) override {
    PAGODA_RETURN_IF_ERROR(Validate(p, num_ranks()));
    const auto rank_bytes = static_cast<size_t>(p.rows * p.row_bytes);
    std::vector<char> all(rank_bytes * static_cast<size_t>(num_ranks()));
    PAGODA_RETURN_IF_ERROR(options_.exchange(p.x, all.data(), rank_bytes));
    for (int64_t row = 0; row < p.rows; ++row) {
      for (int64_t i = 0; i < p.y_row_bytes; ++i) {
        const int64_t rank = i / p.row_bytes, column = i % p.row_bytes;
        static_cast<char*>(p.y)[row * p.y_stride_bytes + i] =
            all[static_cast<size_t>((rank * p.rows + row) * p.row_bytes + column)];
      }
    }
    return absl::OkStatus();
  }

  absl::Status Broadcast(const BroadcastParams&) override {
    return absl::UnimplementedError("Broadcast");
  }
  absl::Status Poll() override { return absl::OkStatus(); }
  void Abort() override {}

 private:
  static absl::Status CheckFloat(DType dtype) {
    if (dtype == DType::kFloat32) return absl::OkStatus();
    return absl::UnimplementedError("an exchange group of other than float32");
  }
  absl::Status Sum(const float* x, int64_t count, std::vector<double>* sums) {
    std::vector<float> all(static_cast<size_t>(count * num_ranks()));
    PAGODA_RETURN_IF_ERROR(
        options_.exchange(x, all.data(), static_cast<size_t>(count) * sizeof(float)));
    sums->assign(static_cast<size_t>(count), 0.0);
    for (size_t i = 0; i < all.size(); ++i) {
      (*sums)[i % static_cast<size_t>(count)] += static_cast<double>(all[i]);
    }
    return absl::OkStatus();
  }

  const DeviceGroupOptions options_;
};

absl::Status ExchangeGroup::AllReduceNorm(const AllReduceNormParams& p) {
  PAGODA_RETURN_IF_ERROR(Validate(p));
  PAGODA_RETURN_IF_ERROR(CheckFloat(p.dtype));
  std::vector<double> sums;
  PAGODA_RETURN_IF_ERROR(Sum(static_cast<const float*>(p.x), p.rows * p.width, &sums));
  for (int64_t row = 0; row < p.rows; ++row) {
    double squares = 0;
    for (int64_t i = row * p.width; i < (row + 1) * p.width; ++i) {
      double& sum = sums[static_cast<size_t>(i)];
      if (p.residual != nullptr) {
        sum += static_cast<double>(static_cast<const float*>(p.residual)[i]);
      }
      squares += sum * sum;
    }
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(p.width) + static_cast<double>(p.epsilon));
    for (int64_t i = 0; i < p.width; ++i) {
      const double sum = sums[static_cast<size_t>(row * p.width + i)];
      static_cast<float*>(p.sum)[row * p.width + i] = static_cast<float>(sum);
      static_cast<float*>(p.y)[row * p.width + i] =
          static_cast<float>(sum * scale * static_cast<double>(p.weight[i] + p.weight_offset));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<DeviceGroup> MakeExchangeGroup(const DeviceGroupOptions& options) {
  return std::make_unique<ExchangeGroup>(options);
}

}  // namespace pagoda::kernels
