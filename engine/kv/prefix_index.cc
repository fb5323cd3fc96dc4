#include "engine/kv/prefix_index.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace pagoda::engine {

PrefixIndex::PrefixIndex(uint32_t num_blocks, uint32_t block_size)
    : block_size_(block_size),
      entries_(num_blocks),
      tokens_(static_cast<size_t>(num_blocks) * block_size) {
  // Never grows while serving: a rehash of a large map would stall a step.
  first_.reserve(num_blocks);
}

void PrefixIndex::Insert(BlockId block, const Content& content) {
  Entry& entry = entries_[block.value()];
  PAGODA_CHECK(!entry.is_listed && content.tokens.size() == block_size_);
  entry = {.hash = content.hash, .parent = content.parent, .is_listed = true};
  std::copy(content.tokens.begin(),
            content.tokens.end(),
            tokens_.begin() + static_cast<size_t>(block.value()) * block_size_);
  auto [it, is_new] = first_.try_emplace(content.hash, block.value());
  if (!is_new) {
    entry.next = it->second;
    entries_[entry.next].previous = block.value();
    it->second = block.value();
  }
  ++size_;
}

absl::optional<BlockId> PrefixIndex::Find(const Content& content) const {
  const auto it = first_.find(content.hash);
  if (it == first_.end()) return absl::nullopt;
  for (uint32_t block = it->second; block != kNone; block = entries_[block].next) {
    const TokenId* tokens = tokens_.data() + static_cast<size_t>(block) * block_size_;
    if (entries_[block].parent == content.parent &&
        std::equal(content.tokens.begin(), content.tokens.end(), tokens)) {
      return BlockId(block);
    }
  }
  return absl::nullopt;
}

bool PrefixIndex::HasDuplicate(BlockId block) const {
  const Entry& entry = entries_[block.value()];
  PAGODA_CHECK(entry.is_listed);
  return entry.previous != kNone || entry.next != kNone;
}

void PrefixIndex::Erase(BlockId block) {
  Entry& entry = entries_[block.value()];
  PAGODA_CHECK(entry.is_listed);
  if (entry.next != kNone) entries_[entry.next].previous = entry.previous;
  if (entry.previous != kNone) {
    entries_[entry.previous].next = entry.next;
  } else if (entry.next != kNone) {
    first_[entry.hash] = entry.next;
  } else {
    first_.erase(entry.hash);
  }
  entry = Entry{};
  --size_;
}

}  // namespace pagoda::engine
