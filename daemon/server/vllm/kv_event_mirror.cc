#include "daemon/server/vllm/kv_event_mirror.h"

namespace pagoda::daemon {
namespace {

absl::optional<uint64_t> ParentOf(bool has_parent, uint64_t parent) {
  return has_parent ? absl::make_optional(parent) : absl::nullopt;
}

}  // namespace

void KvEventMirror::Apply(const engine::BlockEvents& events, KvEventBatches* batches) {
  absl::Span<const engine::TokenId> tokens(events.tokens);
  for (const engine::BlockEvent& event : events.events) {
    switch (event.kind) {
      case engine::BlockEvent::Kind::kStored: {
        const absl::Span<const engine::TokenId> own = tokens.first(events.block_size);
        tokens.remove_prefix(events.block_size);
        blocks_[event.hash] = {.has_parent = event.has_parent,
                               .parent = event.parent,
                               .tokens = {own.begin(), own.end()}};
        if (batches != nullptr)
          batches->AddStored(event.hash, ParentOf(event.has_parent, event.parent), own);
        break;
      }
      case engine::BlockEvent::Kind::kRemoved:
        blocks_.erase(event.hash);
        if (batches != nullptr) batches->AddRemoved(event.hash);
        break;
      case engine::BlockEvent::Kind::kCleared:
        blocks_.clear();
        if (batches != nullptr) batches->AddCleared();
        break;
    }
  }
}

void KvEventMirror::TellState(KvEventBatches* batches) const {
  absl::flat_hash_map<uint64_t, std::vector<uint64_t>> children;
  std::vector<uint64_t> to_tell;
  for (const auto& [hash, block] : blocks_) {
    // A block can outlive its parent.
    if (block.has_parent && blocks_.contains(block.parent)) {
      children[block.parent].push_back(hash);
    } else {
      to_tell.push_back(hash);
    }
  }
  batches->AddCleared();
  while (!to_tell.empty()) {
    const uint64_t hash = to_tell.back();
    to_tell.pop_back();
    const Block& block = blocks_.at(hash);
    batches->AddStored(hash, ParentOf(block.has_parent, block.parent), block.tokens);
    const auto found = children.find(hash);
    if (found == children.end()) continue;
    to_tell.insert(to_tell.end(), found->second.begin(), found->second.end());
  }
}

}  // namespace pagoda::daemon
