#include <cstdlib>
#include <memory>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include "daemon/commands.h"
#include "daemon/exit_code.h"
#include "engine/model/executor_factory.h"
#include "kernels/base/log.h"
#include "kernels/base/log_format.h"
#include "kernels/base/status_macros.h"
#include "parallel/fault_hook.h"
#include "parallel/shm_group.h"
#include "parallel/worker_loop.h"

namespace pagoda::daemon {
namespace {

// For tests of what the daemon makes of failing workers; see fault_hook.h.
constexpr char kFaultHooksVariable[] = "PAGODA_TEST_WORKER_FAULTS";

absl::StatusOr<std::unique_ptr<parallel::StepExecutor>> MakeExecutor(
    const internal::v1::OpenWorker& open, const parallel::UniqueFd& group_memory) {
  SetLogLevel(open.config().log_level());
  SetLogFormat(open.config().front_end().log_format());
  std::unique_ptr<parallel::ProcessGroup> group;
  if (open.tensor_ranks() > 1) {
    PAGODA_ASSIGN_OR_RETURN(group,
                            parallel::MakeShmGroup(group_memory,
                                                   static_cast<int>(open.tensor_rank()),
                                                   static_cast<int>(open.tensor_ranks())));
  }
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<parallel::StepExecutor> executor,
                          engine::MakeStepExecutor(open, std::move(group)));
  const char* const hooks_text = std::getenv(kFaultHooksVariable);
  if (hooks_text == nullptr || *hooks_text == '\0') return executor;
  LogWarning("%s=%s: this worker fails on purpose", kFaultHooksVariable, hooks_text);
  PAGODA_ASSIGN_OR_RETURN(std::vector<parallel::FaultHook> hooks,
                          parallel::ParseFaultHooks(hooks_text));
  return parallel::WithFaultHooks(std::move(executor), std::move(hooks), open);
}

bool IsSocket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

int RunWorkerCommand(int channel_fd, int group_fd) {
  if (!IsSocket(channel_fd)) {
    LogError("--channel-fd=%d: no socket; workers are started by pagoda serve", channel_fd);
    return kExitUsage;
  }
  // It was started as /proc/self/exe, of which the kernel made "exe".
  prctl(PR_SET_NAME, "pagoda-worker");
  const parallel::UniqueFd group_memory(group_fd);
  const absl::Status status =
      parallel::RunWorkerLoop(channel_fd, [&group_memory](const internal::v1::OpenWorker& open) {
        return MakeExecutor(open, group_memory);
      });
  // The daemon logs what went wrong; here only how to end. It is gone when the loop was cancelled.
  return status.ok() || absl::IsCancelled(status) ? kExitOk : kExitWorkerLost;
}

}  // namespace

void RegisterWorkerCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("worker", "Run a model for pagoda serve, which starts it");
  // Not in --help.
  command->group("");
  const auto channel_fd = std::make_shared<int>(-1);
  const auto group_fd = std::make_shared<int>(-1);
  command->add_option("--channel-fd", *channel_fd, "inherited socket")->required();
  command->add_option("--group-fd", *group_fd, "inherited memory that ranks share");
  command->callback(
      [channel_fd, group_fd, exit_code] { *exit_code = RunWorkerCommand(*channel_fd, *group_fd); });
}

}  // namespace pagoda::daemon
