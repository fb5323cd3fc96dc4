#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace pagoda::daemon {

// While it lives, Ctrl-C (SIGINT) calls `on_interrupt` once, on a thread of its own; a second
// Ctrl-C ends the process. REQUIRES: made before any thread that might take the signal, since those
// started later inherit the blocked mask.
class InterruptWatcher {
 public:
  explicit InterruptWatcher(std::function<void()> on_interrupt);
  ~InterruptWatcher();
  InterruptWatcher(const InterruptWatcher&) = delete;
  InterruptWatcher& operator=(const InterruptWatcher&) = delete;

  bool interrupted() const { return interrupted_; }
  // Whether it was; from here on the next Ctrl-C calls `on_interrupt` again.
  bool Rearm() { return interrupted_.exchange(false); }

 private:
  void Watch();

  const std::function<void()> on_interrupt_;
  std::atomic<bool> interrupted_{false};
  int signal_fd_;
  int stop_fd_;
  std::thread thread_;
};

}  // namespace pagoda::daemon
