#include "daemon/client/interrupt.h"

#include <cerrno>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <utility>

#include "daemon/client/commands.h"

namespace pagoda::daemon {
namespace {

sigset_t InterruptSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

InterruptWatcher::InterruptWatcher(std::function<void()> on_interrupt)
    : on_interrupt_(std::move(on_interrupt)) {
  const sigset_t set = InterruptSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  // Where there are no descriptors the first Ctrl-C ends the process.
  if (signal_fd_ >= 0 && stop_fd_ >= 0) {
    thread_ = std::thread([this] { Watch(); });
  } else {
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  }
}

InterruptWatcher::~InterruptWatcher() {
  if (thread_.joinable()) {
    eventfd_write(stop_fd_, 1);
    thread_.join();
  }
  close(signal_fd_);
  close(stop_fd_);
  const sigset_t set = InterruptSet();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void InterruptWatcher::Watch() {
  for (;;) {
    pollfd fds[] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno == EINTR) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    if (interrupted_.exchange(true)) _exit(static_cast<int>(ClientExit::kInterrupted));
    on_interrupt_();
  }
}

}  // namespace pagoda::daemon
