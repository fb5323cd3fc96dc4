#include "daemon/server/live_requests.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace pagoda::daemon {

std::string LiveRequestIds::NameOf(absl::string_view tenant, absl::string_view request_id) {
  // No tenant's name holds a zero byte.
  return absl::StrCat(tenant, absl::string_view("\0", 1), request_id);
}

bool LiveRequestIds::Insert(const std::string& name, engine::RequestKey key) {
  MutexLock lock(&mutex_);
  return live_.try_emplace(name, Live{.key = key}).second;
}

void LiveRequestIds::Erase(const std::string& name) {
  MutexLock lock(&mutex_);
  live_.erase(name);
}

absl::optional<engine::RequestKey> LiveRequestIds::Abort(const std::string& name) {
  MutexLock lock(&mutex_);
  const auto found = live_.find(name);
  if (found == live_.end()) return absl::nullopt;
  found->second.is_aborted = true;
  return found->second.key;
}

bool LiveRequestIds::WasAborted(const std::string& name, engine::RequestKey key) const {
  MutexLock lock(&mutex_);
  const auto found = live_.find(name);
  return found != live_.end() && found->second.key == key && found->second.is_aborted;
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

void WaitUntilStill(const std::atomic<uint64_t>& count,
                    absl::Duration quiet,
                    absl::Time limit,
                    absl::FunctionRef<bool()> ends) {
  constexpr absl::Duration kPoll = absl::Milliseconds(20);
  uint64_t last = count.load();
  absl::Time still_since = absl::Now();
  while (!ends() && absl::Now() < std::min(limit, still_since + quiet)) {
    absl::SleepFor(kPoll);
    if (last != count.load()) still_since = absl::Now();
    last = count.load();
  }
}

}  // namespace pagoda::daemon
