#include "engine/culprit_search.h"

#include <algorithm>

namespace pagoda::engine {
namespace {

// Requests that failed alone and have not done so again; older ones are forgotten.
constexpr size_t kMaxFailedAlone = 64;

template <typename Keys>
bool Contains(const Keys& keys, RequestKey key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace

bool CulpritSearch::MayRun(RequestKey key) const {
  return !is_active() || passed_.contains(key) || Contains(group(), key);
}

bool CulpritSearch::IsSuspect(RequestKey key) const {
  return std::any_of(groups_.begin(), groups_.end(), [key](const std::vector<RequestKey>& group) {
    return Contains(group, key);
  });
}

std::optional<RequestKey> CulpritSearch::Fail(const std::vector<RequestKey>& suspects) {
  if (!is_active()) num_failures_ = 0;
  ++num_failures_;
  const bool group_failed =
      is_active() && std::any_of(suspects.begin(), suspects.end(), [this](RequestKey key) {
        return Contains(group(), key);
      });
  return group_failed ? FailGroup(suspects) : FailOthers(suspects);
}

std::optional<RequestKey> CulpritSearch::FailGroup(const std::vector<RequestKey>& suspects) {
  const std::vector<RequestKey> failed = std::move(groups_.front());
  groups_.pop_front();
  // Whoever ran beside the group may have become the culprit since it passed.
  std::vector<RequestKey> others;
  for (const RequestKey key : suspects) {
    if (passed_.erase(key) > 0) others.push_back(key);
  }
  if (failed.size() == 1 && others.empty()) {
    EndIfDone();
    return Found(failed.front());
  }
  PushHalves(failed);
  if (!others.empty()) groups_.push_back(std::move(others));
  return std::nullopt;
}

std::optional<RequestKey> CulpritSearch::FailOthers(const std::vector<RequestKey>& suspects) {
  if (suspects.empty()) return std::nullopt;
  for (const RequestKey key : suspects) passed_.erase(key);
  if (suspects.size() == 1) {
    const RequestKey key = suspects.front();
    if (Contains(failed_alone_, key)) return Found(key);
    failed_alone_.push_back(key);
    if (failed_alone_.size() > kMaxFailedAlone) failed_alone_.pop_front();
  }
  PushHalves(suspects);
  return std::nullopt;
}

RequestKey CulpritSearch::Found(RequestKey key) {
  constexpr int kFewest = 2;  // it failed alone, once more than once
  num_explained_ = std::max(num_failures_, kFewest);
  num_failures_ = 0;
  return key;
}

void CulpritSearch::PushHalves(const std::vector<RequestKey>& suspects) {
  const auto middle = suspects.begin() + static_cast<int64_t>(suspects.size() + 1) / 2;
  if (middle != suspects.end()) groups_.emplace_front(middle, suspects.end());
  groups_.emplace_front(suspects.begin(), middle);
}

bool CulpritSearch::Pass(RequestKey key) {
  std::vector<RequestKey>& group = groups_.front();
  group.erase(std::remove(group.begin(), group.end(), key), group.end());
  passed_.insert(key);
  if (!group.empty()) return false;
  groups_.pop_front();
  EndIfDone();
  return true;
}

void CulpritSearch::EndIfDone() {
  if (groups_.empty()) passed_.clear();
}

}  // namespace pagoda::engine
