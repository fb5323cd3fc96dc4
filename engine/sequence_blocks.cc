#include "engine/sequence_blocks.h"

#include <algorithm>

namespace pagoda::engine {

SequenceBlocks::Need SequenceBlocks::Find(const Sequence& sequence,
                                          int32_t num_tokens,
                                          int32_t max_shared_tokens) {
  const LiveRequest& live = *sequence.request;
  const int32_t max_blocks = max_shared_tokens / block_size_;
  shared_.clear();
  shared_hash_ = live.root_hash;
  for (int32_t i = 0; prefix_caching_ && i < max_blocks; ++i) {
    const PrefixIndex::Content content = ContentOf(sequence, i, shared_hash_);
    const auto block = pool_->Find(content);
    if (!block.has_value()) break;
    shared_.push_back(*block);
    shared_hash_ = content.hash;
  }
  // Siblings share by reference what the first sequence has computed, cached or not.
  const Sequence& first = live.sequences[0];
  if (sequence.index > 0 && live.prompt_is_done && first.state == SequenceState::kRunning) {
    const int32_t num_blocks =
        std::min(max_blocks, std::min(first.num_confirmed, live.num_prompt_tokens) / block_size_);
    if (num_blocks > static_cast<int32_t>(shared_.size())) {
      shared_.assign(first.tables[0].begin(), first.tables[0].begin() + num_blocks);
      if (prefix_caching_) shared_hash_ = live.prompt_hashes[num_blocks - 1];
    }
  }
  const int32_t num_shared = static_cast<int32_t>(shared_.size());
  Need need = {.num_shared_tokens = num_shared * block_size_,
               .num_fresh = NumBlocks(num_tokens) - num_shared};
  need.num_unpromised = need.num_fresh;
  for (BlockId block : shared_) need.num_unpromised += pool_->num_references(block) == 0 ? 1 : 0;
  return need;
}

void SequenceBlocks::Begin(Sequence* sequence, const Need& need) {
  for (BlockId block : shared_) pool_->AddReference(block);
  sequence->tables[0].assign(shared_.begin(), shared_.end());
  sequence->num_published_blocks = static_cast<int32_t>(shared_.size());
  sequence->published_hash = shared_hash_;
  sequence->num_reserved_blocks = static_cast<uint32_t>(need.num_fresh);
  num_reserved_ += sequence->num_reserved_blocks;
}

uint32_t SequenceBlocks::NumMissing(const Sequence& sequence, int32_t num_tokens) const {
  const int64_t num_blocks = static_cast<int64_t>(sequence.tables[0].size());
  return static_cast<uint32_t>(
      std::max<int64_t>(NumBlocks(sequence.num_computed + num_tokens) - num_blocks, 0));
}

uint32_t SequenceBlocks::NumUnpromised(const Sequence& sequence, int32_t num_tokens) const {
  const uint32_t num_missing = NumMissing(sequence, num_tokens);
  return num_missing > sequence.num_reserved_blocks ? num_missing - sequence.num_reserved_blocks
                                                    : 0;
}

void SequenceBlocks::Take(Sequence* sequence, uint32_t num_new) {
  const uint32_t num_promised = std::min(num_new, sequence->num_reserved_blocks);
  sequence->num_reserved_blocks -= num_promised;
  num_reserved_ -= num_promised;
  for (BlockTable& table : sequence->tables) {
    for (uint32_t i = 0; i < num_new; ++i) table.push_back(pool_->Allocate());
  }
}

PrefixIndex::Content SequenceBlocks::ContentOf(const Sequence& sequence,
                                               int32_t block_idx,
                                               const BlockHash& parent) {
  const LiveRequest& live = *sequence.request;
  const int32_t begin = block_idx * block_size_;
  PrefixIndex::Content content = {.parent = parent};
  if (begin + block_size_ <= live.num_prompt_tokens) {
    content.tokens = absl::MakeConstSpan(live.request.prompt).subspan(begin, block_size_);
    content.hash = live.prompt_hashes[block_idx];
    return content;
  }
  block_tokens_.clear();
  for (int32_t i = 0; i < block_size_; ++i) block_tokens_.push_back(TokenAt(sequence, begin + i));
  content.tokens = block_tokens_;
  content.hash = hasher_->Chain(parent, content.tokens);
  return content;
}

void SequenceBlocks::PublishTo(Sequence* sequence, int32_t num_full) {
  if (sequence->is_poisoned) return;
  const BlockTable& table = sequence->tables[0];
  for (; sequence->num_published_blocks < num_full; ++sequence->num_published_blocks) {
    const BlockId block = table[sequence->num_published_blocks];
    pool_->PrefetchForPublish(block);
    const PrefixIndex::Content content =
        ContentOf(*sequence, sequence->num_published_blocks, sequence->published_hash);
    sequence->published_hash = content.hash;
    pool_->Publish(block, content);
  }
}

void SequenceBlocks::Poison(Sequence* sequence) {
  sequence->is_poisoned = true;
  for (const BlockTable& table : sequence->tables) {
    for (BlockId block : table) pool_->Unpublish(block);
  }
}

void SequenceBlocks::DropPromise(Sequence* sequence) {
  num_reserved_ -= sequence->num_reserved_blocks;
  sequence->num_reserved_blocks = 0;
}

void SequenceBlocks::BeginRelease(Sequence* sequence) {
  DropPromise(sequence);
  for (const BlockTable& table : sequence->tables) {
    for (BlockId block : table) {
      // Those that others share stay in use.
      sequence->num_pending_free_blocks += pool_->num_references(block) == 1 ? 1 : 0;
    }
  }
  num_pending_free_ += sequence->num_pending_free_blocks;
}

void SequenceBlocks::Release(Sequence* sequence) {
  DropPromise(sequence);
  num_pending_free_ -= sequence->num_pending_free_blocks;
  sequence->num_pending_free_blocks = 0;
  for (BlockTable& table : sequence->tables) {
    for (auto block = table.rbegin(); block != table.rend(); ++block) pool_->Release(*block);
    table.clear();
  }
  sequence->num_published_blocks = 0;
}

}  // namespace pagoda::engine
