#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_context.h"

namespace pagoda::kernels::cuda {

// When steps begin and end on the device, by its own clock (%globaltimer): what shows how long it
// idles between them. A mark is a kernel of one thread, in graphs too, and costs a microsecond or
// two; for measurements only. Thread-compatible.
class StepClock {
 public:
  enum class Mark { kBegin = 0, kEnd = 1 };

  // `path` gets the marks when the clock is destroyed, a line each: "begin NS" or "end NS", oldest
  // first, the last 2^20 of them. `context` must outlive it.
  static absl::StatusOr<std::unique_ptr<StepClock>> Create(const DeviceContext& context,
                                                           const std::string& path);
  ~StepClock();
  StepClock(const StepClock&) = delete;
  StepClock& operator=(const StepClock&) = delete;

  absl::Status Add(Mark mark);

 private:
  struct Ring;

  StepClock(const DeviceContext& context, const std::string& path)
      : context_(context), path_(path) {}

  const DeviceContext& context_;
  const std::string path_;
  Ring* ring_ = nullptr;  // device
};

}  // namespace pagoda::kernels::cuda
