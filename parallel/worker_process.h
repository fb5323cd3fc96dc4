#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "parallel/unique_fd.h"

namespace pagoda::parallel {

// A child process that inherits one end of a socketpair, standard error, memory that it shares with
// other workers where there is some, and nothing else. It dies with the thread that started it
// (PR_SET_PDEATHSIG is per thread), so start it from one that lives as long as the daemon. It
// ignores SIGINT, SIGTERM and SIGHUP, which a terminal or a service manager sends to every process
// of a group: only the daemon decides when a worker ends. Thread-compatible; killed and reaped by
// the destructor.
class WorkerProcess {
 public:
  // Runs `command` with "--channel-fd=N" appended, and "--group-fd=N" where `group_memory` is a
  // descriptor (-1: none). command[0] is a path, not looked up in PATH.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(
      const std::vector<std::string>& command, int group_memory = -1);

  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  ~WorkerProcess();

  // The daemon's end of the channel; to be taken once.
  UniqueFd TakeChannel() { return std::move(channel_); }
  pid_t pid() const { return pid_; }
  // Readable when the process has ended.
  int pidfd() const { return pidfd_.get(); }

  // Waits up to `timeout_ns` (0: not at all) for the process to end, and reaps it: how it ended,
  // such as "exited with status 3" or "was killed by signal 9 (Killed)"; absent while it runs.
  absl::optional<std::string> WaitForExit(int64_t timeout_ns);
  // The signal that ended it, once WaitForExit has reaped it; 0: none did.
  int exit_signal() const { return exit_signal_; }
  bool has_exited() const { return exit_text_.has_value(); }
  // A signal (SIGSTOP, a debugger) keeps it from running.
  bool IsStopped() const;
  // SIGKILL.
  void Kill();

 private:
  WorkerProcess(pid_t pid, UniqueFd pidfd, UniqueFd channel)
      : pid_(pid), pidfd_(std::move(pidfd)), channel_(std::move(channel)) {}

  const pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd channel_;
  absl::optional<std::string> exit_text_;
  int exit_signal_ = 0;
};

}  // namespace pagoda::parallel
