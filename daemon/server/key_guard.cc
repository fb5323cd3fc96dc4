#include "daemon/server/key_guard.h"

#include <algorithm>
#include <arpa/inet.h>
#include <pthread.h>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace pagoda::daemon {

double KeyGuard::Forgiven(const Record& record, int64_t now_ns) const {
  const double num_forgiven =
      static_cast<double>(now_ns - record.at_ns) /
      static_cast<double>(absl::ToInt64Nanoseconds(options_.forgiven_after));
  return std::max(record.num_wrong - num_forgiven, 0.0);
}

absl::Duration KeyGuard::NoteWrongKey(absl::string_view address) {
  // More would take longer to be forgiven than anybody waits.
  const double most = options_.num_free + options_.longest / options_.step;
  const int64_t now_ns = options_.clock->NowNs();
  MutexLock lock(&mutex_);
  if (records_.size() >= options_.max_addresses && !records_.contains(address)) {
    const auto quietest =
        std::min_element(records_.begin(), records_.end(), [](const auto& a, const auto& b) {
          return a.second.at_ns < b.second.at_ns;
        });
    records_.erase(quietest);
  }
  Record& record = records_[address];
  record = {.num_wrong = std::min(Forgiven(record, now_ns) + 1, most), .at_ns = now_ns};
  return std::max(record.num_wrong - options_.num_free, 0.0) * options_.step;
}

void KeyGuard::AnswerLater(absl::Duration delay, absl::AnyInvocable<void()> answer) {
  {
    MutexLock lock(&mutex_);
    if (delay > absl::ZeroDuration() && !is_stopped_ && waiting_.size() < options_.max_waiting) {
      waiting_.emplace(options_.clock->NowNs() + absl::ToInt64Nanoseconds(delay),
                       std::move(answer));
      if (!thread_.joinable()) {
        thread_ = std::thread([this] { Run(); });
        pthread_setname_np(thread_.native_handle(), "key-guard");
      }
      return;
    }
  }
  answer();
}

void KeyGuard::Run() {
  while (true) {
    std::multimap<int64_t, absl::AnyInvocable<void()>> due;
    {
      MutexLock lock(&mutex_);
      const bool is_last = is_stopped_;
      const auto end = is_last ? waiting_.end() : waiting_.upper_bound(options_.clock->NowNs());
      while (waiting_.begin() != end) due.insert(waiting_.extract(waiting_.begin()));
      if (due.empty()) {
        if (is_last) return;
        const int64_t next_ns = waiting_.empty() ? INT64_MAX : waiting_.begin()->first;
        const auto has_news = [this, next_ns]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return is_stopped_ || (!waiting_.empty() && waiting_.begin()->first < next_ns);
        };
        const absl::Duration left = next_ns == INT64_MAX
                                        ? absl::InfiniteDuration()
                                        : absl::Nanoseconds(next_ns - options_.clock->NowNs());
        mutex_.AwaitWithTimeout(absl::Condition(&has_news), left);
      }
    }
    for (auto& [at_ns, answer] : due) answer();
  }
}

void KeyGuard::Stop() {
  std::thread thread;
  {
    MutexLock lock(&mutex_);
    is_stopped_ = true;
    std::swap(thread, thread_);
  }
  if (thread.joinable()) thread.join();
}

size_t KeyGuard::num_addresses() const {
  MutexLock lock(&mutex_);
  return records_.size();
}

size_t KeyGuard::num_waiting() const {
  MutexLock lock(&mutex_);
  return waiting_.size();
}

std::string AddressOfPeer(absl::string_view peer) {
  const bool is_v6 = absl::ConsumePrefix(&peer, "ipv6:");
  if (!is_v6 && !absl::ConsumePrefix(&peer, "ipv4:"))
    return std::string(peer.substr(0, peer.find(':')));
  peer = peer.substr(0, peer.rfind(':'));
  if (!is_v6) return std::string(peer);
  std::string text = absl::StrReplaceAll(peer, {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  text = text.substr(0, text.find('%'));  // the name of an interface
  in6_addr address{};
  if (inet_pton(AF_INET6, text.c_str(), &address) != 1) return text;
  // What speaks IPv4 to a socket of IPv6 is one address.
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    char v4[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &address.s6_addr[12], v4, sizeof(v4));
    return v4;
  }
  std::fill(std::begin(address.s6_addr) + 8, std::end(address.s6_addr), 0);
  char network[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, &address, network, sizeof(network));
  return absl::StrCat(network, "/64");
}

}  // namespace pagoda::daemon
