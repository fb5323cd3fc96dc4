#include "engine/request_table.h"

#include <algorithm>
#include <limits>

#include "kernels/base/check.h"

namespace pagoda::engine {

LiveRequest* RequestTable::Add(std::unique_ptr<LiveRequest> live) {
  LiveRequest* const added = live.get();
  const Request& request = added->request;
  if (request.deadline_ns.has_value()) deadlines_.insert({*request.deadline_ns, request.key});
  const bool is_new = live_.emplace(request.key, std::move(live)).second;
  PAGODA_CHECK(is_new);
  return added;
}

LiveRequest* RequestTable::Find(RequestKey key) const {
  const auto it = live_.find(key);
  return it == live_.end() ? nullptr : it->second.get();
}

std::vector<LiveRequest*> RequestTable::All() const {
  std::vector<LiveRequest*> all;
  for (const auto& [key, live] : live_) all.push_back(live.get());
  return all;
}

int64_t RequestTable::next_deadline_ns() const {
  return deadlines_.empty() ? std::numeric_limits<int64_t>::max() : deadlines_.begin()->first;
}

LiveRequest* RequestTable::TakeExpired(int64_t now_ns) {
  if (next_deadline_ns() > now_ns) return nullptr;
  LiveRequest* const live = Find(deadlines_.begin()->second);
  deadlines_.erase(deadlines_.begin());
  return live;
}

std::unique_ptr<LiveRequest> RequestTable::Remove(LiveRequest* live) {
  const Request& request = live->request;
  if (request.deadline_ns.has_value()) deadlines_.erase({*request.deadline_ns, request.key});
  const auto it = live_.find(request.key);
  std::unique_ptr<LiveRequest> removed = std::move(it->second);
  live_.erase(it);
  return removed;
}

void RequestTable::Complete(LiveRequest* live) { completed_.push_back(Remove(live)); }

void RequestTable::ForgetRetired(int64_t now_ns) {
  const auto is_retired = [&](const std::unique_ptr<LiveRequest>& live) {
    for (const Sequence& sequence : live->sequences) {
      if (sequence.num_rows_in_flight > 0) return false;
    }
    if (live->cancelled_ns != 0) {
      metrics_->cancel_to_free_seconds.Observe(static_cast<double>(now_ns - live->cancelled_ns) *
                                               1e-9);
    }
    return true;
  };
  completed_.erase(std::remove_if(completed_.begin(), completed_.end(), is_retired),
                   completed_.end());
}

}  // namespace pagoda::engine
