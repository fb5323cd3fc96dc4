#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "pagoda/internal/v1/worker.pb.h"
#include "parallel/process_group.h"
#include "parallel/step_executor.h"

namespace pagoda::engine {

// The executor for open.config().worker().device(): ModelRunner over the backend of that name, or
// SimExecutor for "sim". `group` is that of several tensor ranks; null: one.
absl::StatusOr<std::unique_ptr<parallel::StepExecutor>> MakeStepExecutor(
    const internal::v1::OpenWorker& open, std::unique_ptr<parallel::ProcessGroup> group = nullptr);

}  // namespace pagoda::engine
