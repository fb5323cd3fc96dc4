#include "daemon/server/idle_thread.h"

#include <pthread.h>
#include <sched.h>

namespace pagoda::daemon {

IdleThread::IdleThread() : thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), "idle");
  // Nobody needs a right for this way down. Where it is forbidden all the same, the thread is one
  // among equals.
  const sched_param none = {};
  pthread_setschedparam(thread_.native_handle(), SCHED_IDLE, &none);
}

IdleThread::~IdleThread() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void IdleThread::Run(absl::FunctionRef<void()> task) {
  const auto is_done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return task_ == nullptr; };
  MutexLock lock(&mutex_);
  task_ = &task;
  mutex_.Await(absl::Condition(&is_done));
}

void IdleThread::Loop() {
  const auto has_news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || task_ != nullptr;
  };
  while (true) {
    absl::FunctionRef<void()>* task = nullptr;
    {
      MutexLock lock(&mutex_, absl::Condition(&has_news));
      if (task_ == nullptr) return;
      task = task_;
    }
    (*task)();
    MutexLock lock(&mutex_);
    task_ = nullptr;
  }
}

}  // namespace pagoda::daemon
