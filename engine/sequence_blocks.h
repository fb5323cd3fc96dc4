#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/optional.h"
#include "engine/ids.h"
#include "engine/kv/block_hash.h"
#include "engine/kv/block_pool.h"
#include "engine/sequence.h"

namespace pagoda::engine {

// Who holds which blocks: fills and empties the tables of sequences, shares what is computed
// already, keeps the promises that admission makes, takes back what lies behind the window. Writes
// the block members of a Sequence; engine thread only.
class SequenceBlocks {
 public:
  struct Options {
    int32_t block_size = 0;
    bool prefix_caching = false;
    // Where every layer sees only so many tokens (itself included), blocks behind them go back
    // while the sequence runs; 0: some layer sees all.
    int32_t window = 0;
    // Of one sequence, in plans whose results have not come; only with a window.
    int32_t max_tokens_in_flight = 0;
  };

  // `pool` and `hasher` outlive this.
  SequenceBlocks(const Options& options, BlockPool* pool, const BlockHasher* hasher);

  int64_t NumBlocks(int32_t num_tokens) const {
    return (num_tokens + block_size_ - 1) / block_size_;
  }
  // Most that a sequence of so many tokens is promised at once; it can do with no fewer than that
  // or the window's. Thread-safe.
  int64_t NumHeldBlocks(int32_t num_tokens) const {
    return std::min(NumBlocks(num_tokens), max_held_blocks_);
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
    // Computed already, in blocks that it can share, the last of them perhaps in one that it
    // copies.
    int32_t num_shared_tokens = 0;
    std::optional<BlockId> copied_block;
    int64_t num_fresh = 0;       // blocks to be promised
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
  // Tokens that it can compute with blocks that it has or was promised. With a window the promise
  // of a long prompt is renewed as blocks come back.
  int32_t NumPromisedTokens(const Sequence& sequence) const;
  // Promises one block more. REQUIRES: num_unpromised() > 0.
  void Promise(Sequence* sequence);
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
  // Gives back the blocks that no row after the confirmed tokens reads. REQUIRES: kRunning;
  // Publish was called.
  void Recycle(Sequence* sequence) {
    if (window_ > 0) RecycleBehind(sequence);
  }
  // The sequence's keys and values are not to be trusted: nobody shall find its blocks.
  void Poison(Sequence* sequence);

  // Nothing that blocks hold is found any more; how many contents could be. Sequences that have a
  // table are to be poisoned.
  uint32_t ForgetContents() { return pool_->UnpublishAll(); }

  // The sequence leaves, but plans in flight name its blocks: takes the promise back and counts
  // them as pending.
  void BeginRelease(Sequence* sequence);
  // Nobody names the sequence's blocks any more.
  void Release(Sequence* sequence);

 private:
  void PublishTo(Sequence* sequence, int32_t num_full);
  void RecycleBehind(Sequence* sequence);
  // First block that a row at `position` reads.
  int32_t FirstBlockRead(int32_t position) const {
    return window_ > 0 ? std::max(position - window_ + 1, 0) / block_size_ : 0;
  }
  // The longest prefix of at most `max_blocks` of which a row after it finds all that it reads;
  // fills shared_ and its companions.
  void FindCached(const Sequence& sequence, int32_t max_blocks);
  void FindCachedWindow(const Sequence& sequence, int32_t max_blocks);
  // What a sequence of the same request has computed of the same tokens, published or not: shares
  // its full blocks where more than those found are full, and copies the last.
  void FindOfSibling(const Sequence& sequence, int32_t max_shared_tokens, Need* need);
  void DropPromise(Sequence* sequence);
  // Content of the block_idx-th block, after one with the hash `parent`; valid until the next call.
  // REQUIRES: its tokens are known.
  PrefixIndex::Content ContentOf(const Sequence& sequence,
                                 int32_t block_idx,
                                 const BlockHash& parent);

  const int32_t block_size_;
  const bool prefix_caching_;
  const int32_t window_;
  BlockPool* const pool_;
  const BlockHasher* const hasher_;
  const int64_t max_held_blocks_;
  uint32_t num_reserved_ = 0;      // sum of num_reserved_blocks
  uint32_t num_pending_free_ = 0;  // sum of num_pending_free_blocks

  // What Find found last: blocks, the first of them that is needed (those before it are not held),
  // and the hash of the last.
  std::vector<BlockId> shared_;
  int32_t first_shared_ = 0;
  BlockHash shared_hash_;
  // Of FindCachedWindow, to keep their memory.
  std::vector<absl::optional<BlockId>> found_;
  std::vector<BlockHash> hashes_;
  std::vector<TokenId> block_tokens_;
};

}  // namespace pagoda::engine
