#include "engine/model/executor_factory.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/model_runner.h"
#include "engine/model/sim_executor.h"

namespace pagoda::engine {

absl::StatusOr<std::unique_ptr<parallel::StepExecutor>> MakeStepExecutor(
    const internal::v1::OpenWorker& open, std::unique_ptr<parallel::ProcessGroup> group) {
  const std::string& device = open.config().worker().device();
  if (device == "sim") return std::make_unique<SimExecutor>();
  if (device == "cpu" || device == "cuda") {
    return std::make_unique<ModelRunner>(
        kernels::OpenBackend, &Clock::Monotonic(), std::move(group));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("worker.device is \"", device, "\"; expected \"cpu\", \"cuda\" or \"sim\""));
}

}  // namespace pagoda::engine
