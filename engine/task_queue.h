#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/base/mutex.h"

namespace pagoda::engine {

// What other threads want a thread to do between its rounds. Thread-safe; RunAll and Close are that
// thread's.
class TaskQueue {
 public:
  using Task = std::function<void()>;

  // False: the thread takes no more, and `task` is dropped.
  bool Post(Task task) {
    MutexLock lock(&mutex_);
    if (!is_closed_) tasks_.push_back(std::move(task));
    return !is_closed_;
  }

  void RunAll() {
    std::vector<Task> tasks;
    {
      MutexLock lock(&mutex_);
      tasks.swap(tasks_);
    }
    for (const Task& task : tasks) task();
  }

  // Runs those that were taken.
  void Close() {
    {
      MutexLock lock(&mutex_);
      is_closed_ = true;
    }
    RunAll();
  }

 private:
  Mutex mutex_;
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pagoda::engine
