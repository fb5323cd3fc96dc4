#include "daemon/server/live_requests.h"

#include "daemon/server/rpc_error.h"

namespace pagoda::daemon {

absl::Status LiveRequestIds::Insert(const std::string& request_id) {
  MutexLock lock(&mutex_);
  return ids_.insert(request_id).second ? absl::OkStatus() : RequestIdInUseError(request_id);
}

void LiveRequestIds::Erase(const std::string& request_id) {
  MutexLock lock(&mutex_);
  ids_.erase(request_id);
}

void CallCounter::Begin() {
  MutexLock lock(&mutex_);
  ++num_open_;
}

void CallCounter::End() {
  MutexLock lock(&mutex_);
  --num_open_;
}

bool CallCounter::WaitUntilNone(absl::Time deadline) {
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_open_ == 0; };
  MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(absl::Condition(&none), deadline);
}

size_t CallCounter::num_open() const {
  MutexLock lock(&mutex_);
  return num_open_;
}

}  // namespace pagoda::daemon
