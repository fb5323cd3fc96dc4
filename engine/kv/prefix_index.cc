#include "engine/kv/prefix_index.h"

#include <algorithm>

#include "engine/prefetch.h"
#include "kernels/base/check.h"

namespace pagoda::engine {

PrefixIndex::PrefixIndex(uint32_t num_blocks, uint32_t block_size)
    : block_size_(block_size),
      entries_(num_blocks),
      tokens_(static_cast<size_t>(num_blocks) * block_size),
      pending_tokens_(kMaxPending * block_size) {
  // Never grows while serving: a rehash of a large map would stall a step.
  first_.reserve(num_blocks);
}

void PrefixIndex::Insert(BlockId block, const Content& content) {
  PAGODA_CHECK(content.tokens.size() == block_size_);
  if (num_pending_ == kMaxPending) Settle();
  const size_t begin = static_cast<size_t>(block.value()) * block_size_;
  __builtin_prefetch(&entries_[block.value()], 1);
  PrefetchBytes(&tokens_[begin], block_size_ * sizeof(TokenId));
  first_.prefetch(content.hash);
  std::copy(content.tokens.begin(),
            content.tokens.end(),
            pending_tokens_.begin() + num_pending_ * block_size_);
  pending_[num_pending_++] = {
      block.value(), content.hash, content.parent, content.is_first, content.is_secret};
}

void PrefixIndex::Settle() {
  for (size_t i = 0; i < num_pending_; ++i) {
    List(pending_[i], pending_tokens_.data() + i * block_size_);
  }
  num_pending_ = 0;
}

void PrefixIndex::List(const Pending& pending, const TokenId* tokens) {
  const uint32_t block = pending.block;
  Entry& entry = entries_[block];
  PAGODA_CHECK(!entry.is_listed);
  entry = {.hash = pending.hash,
           .parent = pending.parent,
           .is_listed = true,
           .is_first = pending.is_first,
           .is_secret = pending.is_secret};
  std::copy_n(tokens, block_size_, tokens_.begin() + static_cast<size_t>(block) * block_size_);
  auto [it, is_new] = first_.try_emplace(pending.hash, block);
  if (!is_new) {
    entry.next = it->second;
    entries_[entry.next].previous = block;
    it->second = block;
  }
  ++size_;
  if (events_ != nullptr && is_new && !entry.is_secret) TellStored(block, events_);
}

void PrefixIndex::TellStored(uint32_t block, BlockEvents* events) const {
  const Entry& entry = entries_[block];
  events->AddStored(
      entry.hash,
      entry.is_first ? nullptr : &entry.parent,
      absl::MakeConstSpan(tokens_).subspan(static_cast<size_t>(block) * block_size_, block_size_));
}

void PrefixIndex::AppendAll(BlockEvents* events) {
  Settle();
  for (const auto& [hash, block] : first_) {
    if (!entries_[block].is_secret) TellStored(block, events);
  }
}

bool PrefixIndex::Contains(BlockId block) {
  Settle();
  return entries_[block.value()].is_listed;
}

absl::optional<BlockId> PrefixIndex::Find(const Content& content) {
  Settle();
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

bool PrefixIndex::HasDuplicate(BlockId block) {
  Settle();
  const Entry& entry = entries_[block.value()];
  PAGODA_CHECK(entry.is_listed);
  return entry.previous != kNone || entry.next != kNone;
}

void PrefixIndex::Erase(BlockId block) {
  Settle();
  Entry& entry = entries_[block.value()];
  PAGODA_CHECK(entry.is_listed);
  if (entry.next != kNone) entries_[entry.next].previous = entry.previous;
  if (entry.previous != kNone) {
    entries_[entry.previous].next = entry.next;
  } else if (entry.next != kNone) {
    first_[entry.hash] = entry.next;
  } else {
    first_.erase(entry.hash);
    if (events_ != nullptr && !entry.is_secret) events_->AddRemoved(entry.hash);
  }
  entry = Entry{};
  --size_;
}

}  // namespace pagoda::engine
