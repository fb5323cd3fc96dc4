#include "engine/model/host_group.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Adds how long it lives.
class AddedTime {
 public:
  explicit AddedTime(int64_t* sum_ns) : sum_ns_(*sum_ns) {}
  ~AddedTime() { sum_ns_ += Clock::Monotonic().NowNs() - start_ns_; }
  AddedTime(const AddedTime&) = delete;
  AddedTime& operator=(const AddedTime&) = delete;

 private:
  int64_t& sum_ns_;
  const int64_t start_ns_ = Clock::Monotonic().NowNs();
};

class HostGroup final : public kernels::DeviceGroup {
 public:
  HostGroup(parallel::ProcessGroup& host, int64_t* op_ns) : host_(host), op_ns_(op_ns) {}

  int rank() const override { return host_.rank(); }
  int num_ranks() const override { return host_.num_ranks(); }
  absl::string_view transport() const override { return "shared memory"; }

  absl::Status AllReduceSum(const kernels::AllReduceParams& params) override {
    PAGODA_RETURN_IF_ERROR(Validate(params));
    const AddedTime time(op_ns_);
    if (params.count > 0 && params.y != params.x) {
      const size_t num_bytes = static_cast<size_t>(params.count) * DTypeBytes(params.dtype);
      std::memcpy(params.y, params.x, num_bytes);
    }
    return host_.AllReduceSum(params.y, params.dtype, params.count);
  }

  bool SupportsAllReduceNorm(const kernels::AllReduceNormParams&) const override { return false; }
  absl::Status AllReduceNorm(const kernels::AllReduceNormParams&) override {
    return absl::UnimplementedError("AllReduceNorm is not an op of a group of the host");
  }

  absl::Status AllGather(const kernels::AllGatherParams& params) override;

  absl::Status Broadcast(const kernels::BroadcastParams& params) override {
    PAGODA_RETURN_IF_ERROR(Validate(params, num_ranks()));
    const AddedTime time(op_ns_);
    return host_.Broadcast(params.data, static_cast<size_t>(params.size_bytes), params.root);
  }

  // Whatever went wrong, an op has returned it.
  absl::Status Poll() override { return absl::OkStatus(); }
  void Abort() override { host_.Abort(); }

 private:
  parallel::ProcessGroup& host_;
  int64_t* const op_ns_;
  std::vector<char> row_;  // of all ranks
};

absl::Status HostGroup::AllGather(const kernels::AllGatherParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params, num_ranks()));
  const AddedTime time(op_ns_);
  const auto row_bytes = static_cast<size_t>(params.row_bytes);
  const auto y_row_bytes = static_cast<size_t>(params.y_row_bytes);
  row_.resize(std::max(row_.size(), row_bytes * static_cast<size_t>(num_ranks())));
  for (int64_t row = 0; row < params.rows; ++row) {
    const char* const x = static_cast<const char*>(params.x) + row * params.row_bytes;
    PAGODA_RETURN_IF_ERROR(host_.AllGather(x, row_.data(), row_bytes));
    std::memcpy(
        static_cast<char*>(params.y) + row * params.y_stride_bytes, row_.data(), y_row_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<kernels::DeviceGroup> MakeHostGroup(parallel::ProcessGroup& host, int64_t* op_ns) {
  return std::make_unique<HostGroup>(host, op_ns);
}

}  // namespace pagoda::engine
