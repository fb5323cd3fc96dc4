#include "daemon/server/text_pool.h"

#include <pthread.h>
#include <utility>

#include "daemon/server/rpc_error.h"

namespace pagoda::daemon {

TextPool::TextPool(Options options) : options_(options) {
  for (size_t i = 0; i < options_.num_threads; ++i) {
    threads_.emplace_back([this] { Run(); });
    pthread_setname_np(threads_.back().native_handle(), options_.thread_name);
  }
}

TextPool::~TextPool() { Stop(); }

absl::Status TextPool::Post(size_t message_bytes, Task task) {
  MutexLock lock(&mutex_);
  const bool too_many = waiting_.size() >= options_.max_waiting_tasks;
  const bool too_large =
      !waiting_.empty() && waiting_bytes_ + message_bytes > options_.max_waiting_bytes;
  if (stopping_) return DrainingError();
  if (too_many || too_large) return TextQueueFullError(waiting_.size(), options_.purpose);
  waiting_bytes_ += message_bytes;
  waiting_.push_back({message_bytes, std::move(task)});
  return absl::OkStatus();
}

void TextPool::Run() {
  const auto has_news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !waiting_.empty();
  };
  while (true) {
    Waiting next;
    {
      MutexLock lock(&mutex_, absl::Condition(&has_news));
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      waiting_bytes_ -= next.message_bytes;
    }
    next.task();
  }
}

void TextPool::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace pagoda::daemon
