#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {

// A thread that gets of the processors what nobody else wants (SCHED_IDLE): on a machine all of
// whose cores are busy a three-hundredth of one, elsewhere a core. It may stand still for long at
// any point, so nobody else may wait for a lock that a task holds. Thread-compatible.
class IdleThread {
 public:
  IdleThread();
  ~IdleThread();
  IdleThread(const IdleThread&) = delete;
  IdleThread& operator=(const IdleThread&) = delete;

  // Runs `task` there and waits for its end.
  void Run(absl::FunctionRef<void()> task);

 private:
  void Loop();

  // Of two threads of which one always waits.
  Mutex mutex_;
  absl::FunctionRef<void()>* task_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pagoda::daemon
