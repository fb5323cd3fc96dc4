#include "parallel/worker_process.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/status_macros.h"

namespace pagoda::parallel {
namespace {

// glibc 2.36 declares its wrappers without extern "C", so that C++ cannot link them.
int PidfdOpen(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }
void PidfdSendSignal(int pidfd, int signal) {
  syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
}

// Where the channel is in the worker, and the memory of its group; everything above is closed.
constexpr int kWorkerChannelFd = 3;
constexpr int kWorkerGroupFd = 4;
constexpr int kFirstOtherFd = 5;
// Of the child when it cannot become the worker, as in shells.
constexpr int kExecFailedStatus = 127;

absl::Status SystemCallFailed(absl::string_view call) {
  return absl::UnavailableError(
      absl::StrFormat("cannot start a worker: %s failed: %s", call, std::strerror(errno)));
}

absl::Status CannotExecute(const std::string& path, int error) {
  return absl::NotFoundError(
      absl::StrFormat("cannot start a worker: cannot execute %s: %s", path, std::strerror(error)));
}

// Made before the fork, since the child of a process with threads may only make system calls.
struct ChildPlan {
  pid_t parent_pid;
  int channel_fd;
  int group_fd;  // -1: none
  int error_fd;  // receives errno if the worker cannot be executed; closed when it can
  const char* path;
  char* const* argv;
};

void SetStandardStreams() {
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
  // A library that prints must not write into the daemon's output.
  dup2(STDERR_FILENO, STDOUT_FILENO);
}

void ResetSignals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(ignored, SIG_IGN);
}

void CloseOnExecFrom(int first_fd) {
  if (close_range(first_fd, ~0u, CLOSE_RANGE_CLOEXEC) == 0) return;
  // Where a sandbox refuses the call.
  const int64_t end_fd = std::min<int64_t>(sysconf(_SC_OPEN_MAX), 1 << 20);
  for (int fd = first_fd; fd < end_fd; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

[[noreturn]] void BecomeWorker(const ChildPlan& plan) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // If the daemon died before that call no signal will come.
  if (getppid() != plan.parent_pid) _exit(kExecFailedStatus);
  SetStandardStreams();
  // Out of the way of each other first.
  const int channel_fd = fcntl(plan.channel_fd, F_DUPFD, kFirstOtherFd);
  const int group_fd = plan.group_fd < 0 ? -1 : fcntl(plan.group_fd, F_DUPFD, kFirstOtherFd);
  dup2(channel_fd, kWorkerChannelFd);
  if (group_fd >= 0) dup2(group_fd, kWorkerGroupFd);
  CloseOnExecFrom(group_fd >= 0 ? kFirstOtherFd : kWorkerGroupFd);
  ResetSignals();
  execv(plan.path, plan.argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(plan.error_fd, &error, sizeof error);
  _exit(kExecFailedStatus);
}

// The child's errno, or 0 once it has become the worker.
int ReadExecError(int fd) {
  int error = 0;
  ssize_t received;
  do {
    received = read(fd, &error, sizeof error);
  } while (received < 0 && errno == EINTR);
  return received == sizeof error ? error : 0;
}

std::string ExitText(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return absl::StrFormat("exited with status %d", info.si_status);
  std::string text =
      absl::StrFormat("was killed by signal %d (%s)", info.si_status, strsignal(info.si_status));
  if (info.si_status == SIGKILL) text += ", as the kernel does when memory runs out";
  return text;
}

std::vector<std::string> WorkerArguments(std::vector<std::string> command, bool has_group) {
  // What ps shows: a name that says what runs.
  if (command[0] == "/proc/self/exe") command[0] = program_invocation_short_name;
  command.push_back(absl::StrFormat("--channel-fd=%d", kWorkerChannelFd));
  if (has_group) command.push_back(absl::StrFormat("--group-fd=%d", kWorkerGroupFd));
  return command;
}

struct FdPair {
  UniqueFd ours;
  UniqueFd theirs;  // the child's
};

absl::StatusOr<FdPair> MakeChannel() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return SystemCallFailed("socketpair");
  }
  return FdPair{.ours = UniqueFd(fds[0]), .theirs = UniqueFd(fds[1])};
}

absl::StatusOr<FdPair> MakeErrorPipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return SystemCallFailed("pipe2");
  FdPair pipe{.ours = UniqueFd(fds[0]), .theirs = UniqueFd()};
  const UniqueFd writer(fds[1]);
  // Above those that the child overwrites.
  pipe.theirs.Reset(fcntl(writer.get(), F_DUPFD_CLOEXEC, kFirstOtherFd));
  if (!pipe.theirs.valid()) return SystemCallFailed("fcntl");
  return pipe;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(
    const std::vector<std::string>& command, int group_memory) {
  if (command.empty()) return absl::InvalidArgumentError("the worker command is empty");
  std::vector<std::string> args = WorkerArguments(command, group_memory >= 0);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  PAGODA_ASSIGN_OR_RETURN(FdPair channel, MakeChannel());
  PAGODA_ASSIGN_OR_RETURN(FdPair errors, MakeErrorPipe());

  const ChildPlan plan{.parent_pid = getpid(),
                       .channel_fd = channel.theirs.get(),
                       .group_fd = group_memory,
                       .error_fd = errors.theirs.get(),
                       .path = command[0].c_str(),
                       .argv = argv.data()};
  // Not fork(): the handlers that libraries register for it are for children that go on.
  const pid_t pid = _Fork();
  if (pid < 0) return SystemCallFailed("fork");
  if (pid == 0) BecomeWorker(plan);

  UniqueFd pidfd(PidfdOpen(pid));
  if (!pidfd.valid()) {
    const absl::Status status = SystemCallFailed("pidfd_open");
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return status;
  }
  std::unique_ptr<WorkerProcess> process(
      new WorkerProcess(pid, std::move(pidfd), std::move(channel.ours)));
  // Else the ends of neither would ever be seen.
  channel.theirs.Reset();
  errors.theirs.Reset();
  if (const int error = ReadExecError(errors.ours.get()); error != 0) {
    return CannotExecute(command[0], error);
  }
  return process;
}

WorkerProcess::~WorkerProcess() {
  if (exit_text_.has_value()) return;
  Kill();
  // Even a process in the kernel ends soon after SIGKILL; a device driver that never returns must
  // not stop the daemon.
  constexpr int64_t kReapTimeoutNs = 10'000'000'000;
  WaitForExit(kReapTimeoutNs);
}

absl::optional<std::string> WorkerProcess::WaitForExit(int64_t timeout_ns) {
  const Clock& clock = Clock::Monotonic();
  const int64_t end_ns = clock.NowNs() + timeout_ns;
  while (!exit_text_.has_value()) {
    siginfo_t info{};
    const int result = waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG);
    if (result == 0 && info.si_pid != 0) {
      exit_text_ = ExitText(info);
      if (info.si_code != CLD_EXITED) exit_signal_ = info.si_status;
      break;
    }
    // The environment may have set SIGCHLD to be ignored: then the kernel reaps.
    if (result != 0 && errno == ECHILD) {
      exit_text_ = "ended in an unknown way";
      break;
    }
    const int64_t left_ns = end_ns - clock.NowNs();
    if (left_ns <= 0) break;
    pollfd entry{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    poll(&entry, 1, static_cast<int>(std::min<int64_t>(left_ns / 1'000'000 + 1, 1000)));
  }
  return exit_text_;
}

bool WorkerProcess::IsStopped() const {
  if (exit_text_.has_value()) return false;
  siginfo_t info{};
  const int options = WSTOPPED | WNOHANG | WNOWAIT;
  const int result = waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, options);
  return result == 0 && info.si_pid != 0;
}

void WorkerProcess::Kill() {
  if (!exit_text_.has_value()) PidfdSendSignal(pidfd_.get(), SIGKILL);
}

}  // namespace pagoda::parallel
