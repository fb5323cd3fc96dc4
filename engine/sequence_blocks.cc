#include "engine/sequence_blocks.h"

#include <algorithm>
#include <limits>

#include "engine/kv/cache_size.h"

namespace pagoda::engine {

namespace {

// What a table says where nothing is held any more; workers do not read it.
const BlockId kRecycledBlock(0);

// Siblings of the first sequence that have never run.
bool HasSiblingsToBegin(const Sequence& first) {
  const auto& siblings = first.request->sequences;
  return first.index == 0 && std::any_of(siblings.begin(), siblings.end(), [](const Sequence& s) {
           return s.index > 0 && s.num_preemptions == 0 &&
                  (s.state == SequenceState::kIdle || s.state == SequenceState::kWaiting);
         });
}

// A sequence of the same request that has computed the first `num_tokens` tokens of another; null:
// none has.
struct Donor {
  const Sequence* sequence = nullptr;
  int32_t num_tokens = 0;
};

Donor DonorOf(const Sequence& sequence) {
  const LiveRequest& live = *sequence.request;
  const Sequence* const parent = sequence.parent;
  if (parent != nullptr && parent->state == SequenceState::kRunning)
    return {.sequence = parent, .num_tokens = parent->num_confirmed};
  const Sequence& first = live.sequences[0];
  if (sequence.index == 0 || !live.prompt_is_done || first.state != SequenceState::kRunning)
    return {};
  return {.sequence = &first, .num_tokens = std::min(first.num_confirmed, live.num_prompt_tokens)};
}

constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();

int64_t MaxHeldBlocks(const SequenceBlocks::Options& options, int64_t num_total) {
  if (options.window == 0) return kNoBound;
  const KvSpec spec = {.kind = KvSpec::Kind::kSlidingWindow, .window = options.window};
  const auto least = static_cast<int64_t>(
      KvBlocksPerSequence(spec, options.block_size, std::numeric_limits<int32_t>::max()));
  // More than the window lets prompts go on while results are under way.
  const int64_t num_tokens = int64_t{options.window} + options.max_tokens_in_flight;
  const int64_t wanted = (num_tokens + options.block_size - 1) / options.block_size + 1;
  return std::max(least, std::min(wanted, num_total));
}

}  // namespace

SequenceBlocks::SequenceBlocks(const Options& options, BlockPool* pool, const BlockHasher* hasher)
    : block_size_(options.block_size),
      prefix_caching_(options.prefix_caching),
      window_(options.window),
      pool_(pool),
      hasher_(hasher),
      max_held_blocks_(MaxHeldBlocks(options, pool->num_total())) {}

void SequenceBlocks::FindCached(const Sequence& sequence, int32_t max_blocks) {
  for (int32_t i = 0; i < max_blocks; ++i) {
    const PrefixIndex::Content content = ContentOf(sequence, i, shared_hash_);
    const auto block = pool_->Find(content);
    if (!block.has_value()) break;
    shared_.push_back(*block);
    shared_hash_ = content.hash;
  }
}

void SequenceBlocks::FindCachedWindow(const Sequence& sequence, int32_t max_blocks) {
  found_.clear();
  hashes_.clear();
  BlockHash parent = shared_hash_;
  for (int32_t i = 0; i < max_blocks; ++i) {
    const PrefixIndex::Content content = ContentOf(sequence, i, parent);
    found_.push_back(pool_->Find(content));
    parent = content.hash;
    hashes_.push_back(parent);
  }
  int32_t end = max_blocks;
  for (int32_t i = end - 1; i >= FirstBlockRead(end * block_size_); --i) {
    if (!found_[i].has_value()) end = i;
  }
  if (end == 0) return;
  first_shared_ = FirstBlockRead(end * block_size_);
  shared_.assign(first_shared_, kRecycledBlock);
  for (int32_t i = first_shared_; i < end; ++i) shared_.push_back(*found_[i]);
  shared_hash_ = hashes_[end - 1];
}

void SequenceBlocks::FindOfSibling(const Sequence& sequence,
                                   int32_t max_shared_tokens,
                                   Need* need) {
  const Donor donor = DonorOf(sequence);
  if (donor.sequence == nullptr) return;
  const BlockTable& table = donor.sequence->tables[0];
  const int32_t num_tokens = std::min(max_shared_tokens, donor.num_tokens);
  const int32_t num_blocks = num_tokens / block_size_;
  const int32_t first_read = FirstBlockRead(num_tokens);
  if (first_read < donor.sequence->num_recycled_blocks) return;
  const auto num_found = static_cast<int32_t>(shared_.size());
  if (num_blocks < num_found) return;
  if (num_blocks > num_found) {
    for (int32_t i = num_found; prefix_caching_ && i < num_blocks; ++i) {
      shared_hash_ = ContentOf(sequence, i, shared_hash_).hash;
    }
    first_shared_ = first_read;
    shared_.assign(first_read, kRecycledBlock);
    shared_.insert(shared_.end(), table.begin() + first_read, table.begin() + num_blocks);
  }
  need->num_shared_tokens = num_tokens;
  if (num_tokens % block_size_ != 0) need->copied_block = table[num_blocks];
}

SequenceBlocks::Need SequenceBlocks::Find(const Sequence& sequence,
                                          int32_t num_tokens,
                                          int32_t max_shared_tokens) {
  const int32_t max_blocks = max_shared_tokens / block_size_;
  shared_.clear();
  first_shared_ = 0;
  shared_hash_ = sequence.request->root_hash;
  if (prefix_caching_ && window_ > 0) FindCachedWindow(sequence, max_blocks);
  if (prefix_caching_ && window_ == 0) FindCached(sequence, max_blocks);
  Need need = {.num_shared_tokens = static_cast<int32_t>(shared_.size()) * block_size_};
  FindOfSibling(sequence, max_shared_tokens, &need);
  const int32_t num_shared = static_cast<int32_t>(shared_.size());
  need.num_fresh = NumBlocks(num_tokens) - num_shared;
  if (window_ > 0) {
    const int64_t num_held = num_shared - first_shared_;
    need.num_fresh = std::min(need.num_fresh, std::max<int64_t>(max_held_blocks_ - num_held, 1));
  }
  need.num_unpromised = need.num_fresh;
  for (int32_t i = first_shared_; i < num_shared; ++i) {
    need.num_unpromised += pool_->num_references(shared_[i]) == 0 ? 1 : 0;
  }
  return need;
}

void SequenceBlocks::Begin(Sequence* sequence, const Need& need) {
  for (size_t i = first_shared_; i < shared_.size(); ++i) pool_->AddReference(shared_[i]);
  sequence->tables[0].assign(shared_.begin(), shared_.end());
  sequence->num_recycled_blocks = first_shared_;
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

int32_t SequenceBlocks::NumPromisedTokens(const Sequence& sequence) const {
  const int64_t num_blocks =
      static_cast<int64_t>(sequence.tables[0].size()) + sequence.num_reserved_blocks;
  return static_cast<int32_t>(std::min<int64_t>(num_blocks * block_size_ - sequence.num_computed,
                                                std::numeric_limits<int32_t>::max()));
}

void SequenceBlocks::Promise(Sequence* sequence) {
  ++sequence->num_reserved_blocks;
  ++num_reserved_;
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
  const Request& request = live.request;
  PrefixIndex::Content content = {
      .parent = parent,
      .is_first = block_idx == 0,
      .is_secret = !request.cache_salt.empty() || !request.tenant.name.empty()};
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
    const PrefixIndex::Content content =
        ContentOf(*sequence, sequence->num_published_blocks, sequence->published_hash);
    sequence->published_hash = content.hash;
    pool_->Publish(block, content);
  }
}

void SequenceBlocks::RecycleBehind(Sequence* sequence) {
  int32_t position = sequence->num_confirmed;
  // The last full block of the prompt waits for siblings who shall share it, unless the pool is
  // nearly empty: then they compute it again.
  if (HasSiblingsToBegin(*sequence) && num_unpromised() > 1) {
    position = std::min(position, sequence->request->num_prompt_tokens / block_size_ * block_size_);
  }
  const BlockTable& table = sequence->tables[0];
  const int32_t end = FirstBlockRead(position);
  if (end <= sequence->num_recycled_blocks) return;
  uint32_t num_returned = 0;
  for (int32_t i = end; i-- > sequence->num_recycled_blocks;) {
    num_returned += pool_->num_references(table[i]) == 1 ? 1 : 0;
    pool_->Release(table[i]);
  }
  sequence->num_recycled_blocks = end;
  // A prompt that is not all computed gets its promise renewed.
  const int64_t num_lacking = NumBlocks(sequence->num_admission_tokens) -
                              static_cast<int64_t>(table.size()) - sequence->num_reserved_blocks;
  for (int64_t n = std::min<int64_t>(num_lacking, num_returned); n > 0; --n) Promise(sequence);
}

void SequenceBlocks::Poison(Sequence* sequence) {
  sequence->is_poisoned = true;
  for (const BlockTable& table : sequence->tables) {
    for (size_t i = sequence->num_recycled_blocks; i < table.size(); ++i) {
      pool_->Unpublish(table[i]);
    }
  }
  // Those behind the window are no longer its own, but can still be found.
  BlockHash parent = sequence->request->root_hash;
  const int32_t num_recycled = prefix_caching_ ? sequence->num_recycled_blocks : 0;
  for (int32_t i = 0; i < num_recycled; ++i) {
    const PrefixIndex::Content content = ContentOf(*sequence, i, parent);
    while (const auto block = pool_->Find(content)) pool_->Unpublish(*block);
    parent = content.hash;
  }
}

void SequenceBlocks::DropPromise(Sequence* sequence) {
  num_reserved_ -= sequence->num_reserved_blocks;
  sequence->num_reserved_blocks = 0;
}

void SequenceBlocks::BeginRelease(Sequence* sequence) {
  DropPromise(sequence);
  for (const BlockTable& table : sequence->tables) {
    for (size_t i = sequence->num_recycled_blocks; i < table.size(); ++i) {
      // Those that others share stay in use.
      sequence->num_pending_free_blocks += pool_->num_references(table[i]) == 1 ? 1 : 0;
    }
  }
  num_pending_free_ += sequence->num_pending_free_blocks;
}

void SequenceBlocks::Release(Sequence* sequence) {
  DropPromise(sequence);
  num_pending_free_ -= sequence->num_pending_free_blocks;
  sequence->num_pending_free_blocks = 0;
  for (BlockTable& table : sequence->tables) {
    const size_t num_recycled = static_cast<size_t>(sequence->num_recycled_blocks);
    for (size_t i = table.size(); i > num_recycled; --i) pool_->Release(table[i - 1]);
    table.clear();
  }
  sequence->num_recycled_blocks = 0;
  sequence->num_published_blocks = 0;
}

}  // namespace pagoda::engine
