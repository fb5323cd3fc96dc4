#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/ids.h"
#include "engine/kv/block_hash.h"
#include "engine/kv/block_pool.h"
#include "engine/sequence.h"

namespace pagoda::engine {

// Who holds which blocks: fills and empties the tables of sequences, shares what is computed
// already, keeps the promises that admission makes. Writes the block members of a Sequence; engine
// thread only.
class SequenceBlocks {
 public:
  // `pool` and `hasher` outlive this.
  SequenceBlocks(int32_t block_size,
                 bool prefix_caching,
                 BlockPool* pool,
                 const BlockHasher* hasher)
      : block_size_(block_size), prefix_caching_(prefix_caching), pool_(pool), hasher_(hasher) {}

  int64_t NumBlocks(int32_t num_tokens) const {
    return (num_tokens + block_size_ - 1) / block_size_;
  }
  int64_t num_total() const { return pool_->num_total(); }
  // Neither used nor promised.
  int64_t num_unpromised() const { return int64_t{pool_->num_available()} - num_reserved_; }
  uint32_t num_reserved() const { return num_reserved_; }
  // Held by sequences that have left, and free as soon as their last plan in flight is retired.
  uint32_t num_pending_free() const { return num_pending_free_; }
  bool prefix_caching() const { return prefix_caching_; }

  // What a sequence takes to begin.
  struct Need {
    int32_t num_shared_tokens = 0;  // computed already, in blocks that it can share
    int64_t num_fresh = 0;          // blocks to be promised
    int64_t num_unpromised = 0;  // blocks that nobody could be promised any more: fresh ones, and
                                 // shared ones that are cached
  };
  // For a sequence that is to compute `num_tokens`, of which the first `max_shared_tokens` may be
  // shared.
  Need Find(const Sequence& sequence, int32_t num_tokens, int32_t max_shared_tokens);
  // Gives the sequence what Find found for it. REQUIRES: Find was called for it last;
  // num_unpromised() covers the need.
  void Begin(Sequence* sequence, const Need& need);

  // Blocks that the sequence lacks to compute so many more tokens, and those of them that it was
  // not promised.
  uint32_t NumMissing(const Sequence& sequence, int32_t num_tokens) const;
  uint32_t NumUnpromised(const Sequence& sequence, int32_t num_tokens) const;
  // Takes `num_new` blocks for the end of the table, promised ones first. REQUIRES:
  // num_unpromised() covers the others.
  void Take(Sequence* sequence, uint32_t num_new);

  // The sequence's first num_confirmed tokens have their keys and values: full blocks may be found
  // from now on.
  void Publish(Sequence* sequence) {
    // Tokens sampled after a cancellation were computed but never known.
    const int32_t num_full =
        std::min(sequence->num_confirmed, sequence->num_known_tokens) / block_size_;
    if (prefix_caching_ && sequence->num_published_blocks < num_full) PublishTo(sequence, num_full);
  }
  // The sequence's keys and values are not to be trusted: nobody shall find its blocks.
  void Poison(Sequence* sequence);

  // The sequence leaves, but plans in flight name its blocks: takes the promise back and counts
  // them as pending.
  void BeginRelease(Sequence* sequence);
  // Nobody names the sequence's blocks any more.
  void Release(Sequence* sequence);

 private:
  void PublishTo(Sequence* sequence, int32_t num_full);
  void DropPromise(Sequence* sequence);
  // Content of the block_idx-th block, after one with the hash `parent`; valid until the next call.
  // REQUIRES: its tokens are known.
  PrefixIndex::Content ContentOf(const Sequence& sequence,
                                 int32_t block_idx,
                                 const BlockHash& parent);

  const int32_t block_size_;
  const bool prefix_caching_;
  BlockPool* const pool_;
  const BlockHasher* const hasher_;
  uint32_t num_reserved_ = 0;      // sum of num_reserved_blocks
  uint32_t num_pending_free_ = 0;  // sum of num_pending_free_blocks

  // What Find found last: blocks, and the hash of the last.
  std::vector<BlockId> shared_;
  BlockHash shared_hash_;
  std::vector<TokenId> block_tokens_;
};

}  // namespace pagoda::engine
