#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#ifdef __SANITIZE_THREAD__
#include <chrono>
#include <condition_variable>
#include <mutex>
#endif

// The mutex of code that runs under ThreadSanitizer. The system's Abseil is not compiled for it, so
// that every access under an absl::Mutex would look like a race; there, and only there, this is a
// std::mutex, which ThreadSanitizer knows.

namespace pagoda {

#ifdef __SANITIZE_THREAD__

// What is used of absl::Mutex, with its meaning.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    mutex_.unlock();
    changed_.notify_all();
  }
  void Await(const absl::Condition& condition) {
    AwaitWithDeadline(condition, absl::InfiniteFuture());
  }
  bool AwaitWithTimeout(const absl::Condition& condition, absl::Duration timeout) {
    return AwaitWithDeadline(condition, absl::Now() + timeout);
  }
  bool AwaitWithDeadline(const absl::Condition& condition, absl::Time deadline) {
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    // What others changed before they slept is seen at latest after a millisecond.
    while (!condition.Eval() && absl::Now() < deadline)
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    lock.release();
    return condition.Eval();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  MutexLock(Mutex* mutex, const absl::Condition& condition) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : MutexLock(mutex) {
    mutex_->Await(condition);
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

#else

using absl::Mutex;
using absl::MutexLock;

#endif

}  // namespace pagoda
