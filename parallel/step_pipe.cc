#include "parallel/step_pipe.h"

namespace pagoda::parallel {

absl::string_view WorkerFailureCauseName(WorkerFailure::Cause cause) {
  constexpr absl::string_view kNames[kNumWorkerFailureCauses] = {
      "killed", "stopped", "crashed", "error", "stuck", "protocol", "start"};
  return kNames[static_cast<size_t>(cause)];
}

}  // namespace pagoda::parallel
