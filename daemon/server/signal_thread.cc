#include "daemon/server/signal_thread.h"

#include <pthread.h>
#include <signal.h>
#include <utility>

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

}  // namespace

void SignalThread::BlockSignals() {
  const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A client that goes away is an error of a write, not the end of the daemon.
  signal(SIGPIPE, SIG_IGN);
}

SignalThread::SignalThread(std::function<void()> on_stop, std::function<void()> on_reload)
    : on_stop_(std::move(on_stop)), on_reload_(std::move(on_reload)), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "signals");
}

SignalThread::~SignalThread() {
  is_ending_.store(true);
  // One for that thread alone ends its wait.
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void SignalThread::Run() {
  const sigset_t signals = HandledSignals();
  while (true) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    if (is_ending_.load()) return;
    number == SIGHUP ? on_reload_() : on_stop_();
  }
}

}  // namespace pagoda::daemon
