#include "parallel/single_group.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_format.h"

namespace pagoda::parallel {
namespace {

class SingleGroup final : public ProcessGroup {
 public:
  explicit SingleGroup(CopyFn copy) : copy_(std::move(copy)) {}

  int rank() const override { return 0; }
  int num_ranks() const override { return 1; }

  absl::Status AllReduceSum(void*, DType dtype, int64_t) override {
    if (dtype == DType::kInt32) {
      return absl::InvalidArgumentError("AllReduceSum of int32, expected a floating-point type");
    }
    return Usable();
  }

  absl::Status AllGather(const void* input, void* output, size_t num_bytes) override {
    const absl::Status status = Usable();
    return !status.ok() || input == output ? status : copy_(output, input, num_bytes);
  }

  absl::Status Broadcast(void*, size_t, int root) override {
    if (root != 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("Broadcast from rank %d of a group of one, expected 0", root));
    }
    return Usable();
  }

  void Abort() override { aborted_ = true; }

 private:
  absl::Status Usable() const {
    return aborted_ ? absl::AbortedError("the process group was aborted") : absl::OkStatus();
  }

  const CopyFn copy_;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeSingleGroup(CopyFn copy) {
  return std::make_unique<SingleGroup>(std::move(copy));
}

}  // namespace pagoda::parallel
