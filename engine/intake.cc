#include "engine/intake.h"

#include <algorithm>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "engine/errors.h"
#include "kernels/base/check.h"

namespace pagoda::engine {

Intake::Intake(const IntakeLimits& limits)
    : limits_(limits), wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  PAGODA_CHECK(wake_fd_ >= 0);
}

Intake::~Intake() { close(wake_fd_); }

Intake::Load Intake::LoadOf(const Request& request) {
  const int64_t num_sequences = std::max(request.n, request.best_of);
  return {.num_sequences = num_sequences,
          .num_tokens = num_sequences * static_cast<int64_t>(request.prompt.size())};
}

absl::Status Intake::Reserve(const Load& load) {
  MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  if (waiting_.num_sequences > 0) {
    if (waiting_.num_sequences + load.num_sequences > limits_.max_waiting_requests) {
      return QueueFullOfRequestsError(waiting_.num_sequences, limits_.max_waiting_requests);
    }
    if (waiting_.num_tokens + load.num_tokens > limits_.max_waiting_tokens) {
      return QueueFullOfTokensError(
          waiting_.num_tokens, load.num_tokens, limits_.max_waiting_tokens);
    }
  }
  waiting_.num_sequences += load.num_sequences;
  waiting_.num_tokens += load.num_tokens;
  return absl::OkStatus();
}

absl::Status Intake::Push(std::unique_ptr<LiveRequest> live) {
  const Load load = LoadOf(live->request);
  {
    MutexLock lock(&mutex_);
    if (!closed_.ok()) {
      waiting_.num_sequences -= load.num_sequences;
      waiting_.num_tokens -= load.num_tokens;
      return closed_;
    }
    batch_.requests.push_back(std::move(live));
    if (batch_.requests.size() + batch_.cancellations.size() > 1) return absl::OkStatus();
  }
  // The engine thread sleeps at most while the batch is empty.
  Wake();
  return absl::OkStatus();
}

void Intake::Cancel(RequestKey key, int64_t now_ns) {
  {
    MutexLock lock(&mutex_);
    batch_.cancellations.push_back({.key = key, .requested_ns = now_ns});
  }
  Wake();
}

void Intake::Close(absl::Status why) {
  {
    MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = std::move(why);
  }
  Wake();
}

void Intake::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable.
  [[maybe_unused]] const ssize_t num_written = write(wake_fd_, &one, sizeof(one));
}

void Intake::Take(Batch* batch) {
  uint64_t count = 0;
  // Before the swap: what comes after it wakes again.
  [[maybe_unused]] const ssize_t num_read = read(wake_fd_, &count, sizeof(count));
  MutexLock lock(&mutex_);
  std::swap(batch_, *batch);
}

void Intake::Leave(const Load& load) {
  MutexLock lock(&mutex_);
  waiting_.num_sequences -= load.num_sequences;
  waiting_.num_tokens -= load.num_tokens;
}

int64_t Intake::num_waiting() const {
  MutexLock lock(&mutex_);
  return waiting_.num_sequences;
}

}  // namespace pagoda::engine
