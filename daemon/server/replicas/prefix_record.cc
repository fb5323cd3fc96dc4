#include "daemon/server/replicas/prefix_record.h"

#include <algorithm>

namespace pagoda::daemon {

size_t PrefixRecord::NumHeld(absl::Span<const engine::BlockHash> prompt) const {
  size_t num_held = 0;
  while (num_held < prompt.size() && places_.contains(prompt[num_held])) ++num_held;
  return num_held;
}

void PrefixRecord::Note(absl::Span<const engine::BlockHash> prompt) {
  // What does not fit beside the prompt's own beginning would be forgotten at once.
  prompt = prompt.first(std::min(prompt.size(), max_blocks_));
  for (size_t i = prompt.size(); i-- > 0;) {
    const auto found = places_.find(prompt[i]);
    const bool is_held = found != places_.end();
    const uint32_t node = is_held ? found->second : NewNode(prompt[i]);
    if (is_held) Unlink(node);
    PushNewest(node);
  }
}

void PrefixRecord::Clear() {
  nodes_.clear();
  places_.clear();
  newest_ = oldest_ = kNone;
}

uint32_t PrefixRecord::NewNode(const engine::BlockHash& hash) {
  uint32_t node = oldest_;
  if (nodes_.size() < max_blocks_) {
    node = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    places_.erase(nodes_[node].hash);
    Unlink(node);
  }
  nodes_[node].hash = hash;
  places_[hash] = node;
  return node;
}

void PrefixRecord::Unlink(uint32_t node) {
  const uint32_t newer = nodes_[node].newer;
  const uint32_t older = nodes_[node].older;
  (newer == kNone ? newest_ : nodes_[newer].older) = older;
  (older == kNone ? oldest_ : nodes_[older].newer) = newer;
}

void PrefixRecord::PushNewest(uint32_t node) {
  nodes_[node].newer = kNone;
  nodes_[node].older = newest_;
  (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = node;
  newest_ = node;
}

}  // namespace pagoda::daemon
