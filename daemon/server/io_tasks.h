#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {

// Tasks that other threads have for one I/O thread, which takes all that wait at once: one step of
// the engine gives thousands of streams a task each. Thread-safe.
class IoTasks {
 public:
  using Task = absl::AnyInvocable<void()>;

  // `context` is the thread's, and is run by it alone.
  explicit IoTasks(boost::asio::io_context* context) : context_(*context) {}

  // In order of arrival.
  void Post(Task task) {
    {
      MutexLock lock(&mutex_);
      tasks_.push_back(std::move(task));
      // Where others wait, RunAll is on its way.
      if (tasks_.size() > 1) return;
    }
    boost::asio::post(context_, [this] { RunAll(); });
  }

 private:
  void RunAll() {
    {
      MutexLock lock(&mutex_);
      running_.swap(tasks_);
    }
    for (Task& task : running_) {
      task();
      task = nullptr;  // what it holds goes at once
    }
    running_.clear();
  }

  boost::asio::io_context& context_;
  Mutex mutex_;
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<Task> running_;  // the I/O thread's
};

}  // namespace pagoda::daemon
