#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace pagoda::daemon {

// Turns SIGTERM, SIGINT and SIGHUP into calls on a thread of its own. Thread-compatible.
class SignalThread {
 public:
  // Keeps the signals from every thread made from now on. Before the process has any other thread.
  static void BlockSignals();

  // Calls `on_stop` at each SIGTERM or SIGINT, `on_reload` at SIGHUP. REQUIRES: BlockSignals was
  // called.
  SignalThread(std::function<void()> on_stop, std::function<void()> on_reload);
  ~SignalThread();

 private:
  void Run();

  const std::function<void()> on_stop_;
  const std::function<void()> on_reload_;
  std::atomic<bool> is_ending_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace pagoda::daemon
