#include "daemon/server/signal_thread.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <utility>

#include "kernels/base/check.h"

namespace pagoda::daemon {
namespace {

sigset_t HandledSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  return signals;
}

int OpenSignalFd() {
  const sigset_t signals = HandledSignals();
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

}  // namespace

void SignalThread::BlockSignals() {
  const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A client that goes away is an error of a write, not the end of the daemon.
  signal(SIGPIPE, SIG_IGN);
}

SignalThread::SignalThread(std::function<void()> on_stop, std::function<void()> on_reload)
    : on_stop_(std::move(on_stop)),
      on_reload_(std::move(on_reload)),
      signal_fd_(OpenSignalFd()),
      stop_fd_(eventfd(0, EFD_CLOEXEC)) {
  PAGODA_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "signals");
}

SignalThread::~SignalThread() {
  const uint64_t one = 1;
  PAGODA_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
}

void SignalThread::Run() {
  while (true) {
    pollfd fds[] = {{.fd = signal_fd_, .events = POLLIN, .revents = 0},
                    {.fd = stop_fd_, .events = POLLIN, .revents = 0}};
    while (poll(fds, 2, -1) < 0) {
    }
    if ((fds[1].revents & POLLIN) != 0) return;
    signalfd_siginfo info;
    PAGODA_CHECK(read(signal_fd_, &info, sizeof(info)) == sizeof(info));
    info.ssi_signo == SIGHUP ? on_reload_() : on_stop_();
  }
}

}  // namespace pagoda::daemon
