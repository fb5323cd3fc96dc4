#pragma once

#include <cstdint>

#include "engine/scheduled_step.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::engine {

// Writes a scheduled step as the message that workers read. The one place where sequences become
// worker.proto. Engine thread only; keeps its message, so that a step in full flow allocates
// nothing.
class StepBuilder {
 public:
  explicit StepBuilder(int32_t vocab_size) : vocab_size_(vocab_size) {}

  // The plan is valid until the next call.
  const internal::v1::StepPlan& Build(const ScheduledStep& step);

 private:
  const int32_t vocab_size_;
  internal::v1::StepPlan plan_;
};

}  // namespace pagoda::engine
