#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "parallel/step_executor.h"

namespace pagoda::parallel {

// Where a test wants a worker to fail. Written as KIND@STEP:RANK:START (in that step) or
// KIND#TOKEN:RANK:START (in every step with a sequence that began with that token in it), several
// joined by commas. START counts the daemon's starts of its workers from 1; RANK and START may be
// "*". Kinds: "error" (the executor fails), "abort", "exit", "kill" (the process ends), "hang"
// (for ever), "delay500" (for so many milliseconds). Example: "abort@40:0:1,hang@17:0:2".
struct FaultHook {
  enum class Kind : uint8_t { kError, kAbort, kExit, kKill, kHang, kDelay };
  Kind kind = Kind::kError;
  int64_t delay_ms = 0;
  // One of the two.
  absl::optional<uint64_t> step_id;
  absl::optional<uint32_t> token;
  // Absent: any.
  absl::optional<uint32_t> rank;
  absl::optional<uint32_t> start;
};

// INVALID_ARGUMENT names what is not understood.
absl::StatusOr<std::vector<FaultHook>> ParseFaultHooks(absl::string_view text);

// The executor, with the hooks that are meant for this worker.
std::unique_ptr<StepExecutor> WithFaultHooks(std::unique_ptr<StepExecutor> executor,
                                             std::vector<FaultHook> hooks,
                                             const internal::v1::OpenWorker& open);

}  // namespace pagoda::parallel
