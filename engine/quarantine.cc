#include "engine/quarantine.h"

#include <algorithm>

namespace pagoda::engine {

BlockHash Quarantine::NameOf(absl::Span<const TokenId> prompt) const {
  return hasher_->Chain(hasher_->Root({}), prompt);
}

void Quarantine::Add(absl::Span<const TokenId> prompt, int64_t now_ns) {
  const BlockHash name = NameOf(prompt);
  MutexLock lock(&mutex_);
  entries_.push_back({.prompt = name, .until_ns = now_ns + kDurationNs});
  if (entries_.size() > kMaxEntries) entries_.pop_front();
  is_empty_.store(false, std::memory_order_release);
}

bool Quarantine::Holds(absl::Span<const TokenId> prompt, int64_t now_ns) const {
  if (is_empty_.load(std::memory_order_acquire)) return false;
  const BlockHash name = NameOf(prompt);
  MutexLock lock(&mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.prompt == name && entry.until_ns > now_ns;
  });
}

}  // namespace pagoda::engine
