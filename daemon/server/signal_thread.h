#pragma once

#include <functional>
#include <thread>

namespace pagoda::daemon {

// Turns SIGTERM and SIGINT into calls on a thread of its own. Thread-compatible.
class SignalThread {
 public:
  // Keeps the signals from every thread made from now on. Before the process has any other thread.
  static void BlockSignals();

  // Calls `on_signal` with 1, 2, 3, ... as signals come. REQUIRES: BlockSignals was called.
  explicit SignalThread(std::function<void(int count)> on_signal);
  ~SignalThread();

 private:
  void Run();

  const std::function<void(int count)> on_signal_;
  const int signal_fd_;
  const int stop_fd_;
  std::thread thread_;
};

}  // namespace pagoda::daemon
