#include "engine/ngram_drafter.h"

#include <algorithm>

namespace pagoda::engine {
namespace {

constexpr int32_t kFirstLength = 4;
// Compared tokens of an occurrence: no draft is longer, so more would not matter.
constexpr int32_t kMaxMatch = 16;
constexpr size_t kFirstIndexSize = 64;

// In steps of one token: what a step with a draft costs beside its drafted tokens (it is planned
// after the result before it), and what each of these costs on a device where that is dear.
constexpr float kStepCost = 0.15f;
constexpr float kTokenCost = 0.2f;
// The balance forgets, and is bounded: luck of long ago does not pay for drafts of today.
constexpr float kMemory = 0.8f;
constexpr float kLeastBalance = -0.5f;
constexpr int32_t kFirstPause = 8;
constexpr int32_t kLongestPause = 512;

}  // namespace

NgramDrafter::NgramDrafter(int32_t max_draft_tokens)
    : max_draft_tokens_(max_draft_tokens),
      index_(kFirstIndexSize, 0),
      length_(std::min(kFirstLength, max_draft_tokens)),
      pause_(kFirstPause) {}

size_t NgramDrafter::EntryOf(int32_t end) const {
  const TokenId* const ngram = tokens_.data() + end - kNgramTokens;
  uint64_t hash = 0;
  for (size_t i = 0; i < kNgramTokens; ++i) {
    hash = (hash ^ static_cast<uint32_t>(ngram[i])) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  const size_t mask = index_.size() - 1;
  size_t entry = hash & mask;
  for (; index_[entry] != 0; entry = (entry + 1) & mask) {
    const TokenId* const held = tokens_.data() + index_[entry] - kNgramTokens;
    if (std::equal(ngram, ngram + kNgramTokens, held)) break;
  }
  return entry;
}

void NgramDrafter::Grow() {
  std::vector<int32_t> old(2 * index_.size(), 0);
  old.swap(index_);
  for (const int32_t end : old)
    if (end != 0) index_[EntryOf(end)] = end;
}

void NgramDrafter::Add(absl::Span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    tokens_.push_back(token);
    if (tokens_.size() < kNgramTokens) continue;
    const int32_t size = static_cast<int32_t>(tokens_.size());
    int32_t& end = index_[EntryOf(size)];
    match_end_ = end;
    end = size;
    if (match_end_ != 0) continue;
    // At most half full.
    if (2 * ++num_entries_ > index_.size()) Grow();
  }
}

int32_t NgramDrafter::MatchLength(int32_t end) const {
  const int32_t size = static_cast<int32_t>(tokens_.size());
  const int32_t most = std::min(end, kMaxMatch);
  int32_t length = static_cast<int32_t>(kNgramTokens);
  while (length < most && tokens_[end - 1 - length] == tokens_[size - 1 - length]) ++length;
  return length;
}

void NgramDrafter::Propose() {
  draft_.clear();
  if (match_end_ == 0 || tokens_.size() < silent_until_) {
    // The sequence was held for nothing.
    if (has_waited_ && tokens_.size() >= silent_until_) NoteResult(0, 0);
    has_waited_ = false;
    return;
  }
  has_waited_ = true;
  const int32_t size = static_cast<int32_t>(tokens_.size());
  const int32_t length = std::min(length_, MatchLength(match_end_));
  for (int32_t i = 0; i < length; ++i) {
    // Beyond the end the repetition goes on with itself.
    const int32_t from = match_end_ + i;
    draft_.push_back(from < size ? tokens_[from] : draft_[from - size]);
  }
}

void NgramDrafter::NoteResult(int32_t num_drafted, int32_t num_accepted) {
  has_waited_ = false;
  const float gain =
      static_cast<float>(num_accepted) - kStepCost - kTokenCost * static_cast<float>(num_drafted);
  balance_ = kMemory * balance_ + (1.0f - kMemory) * gain;
  if (num_drafted > 0 && num_accepted == num_drafted) {
    length_ = std::min(2 * length_, max_draft_tokens_);
    pause_ = kFirstPause;
  } else if (num_drafted > 0) {
    length_ = std::max((num_drafted + num_accepted) / 2, 1);
  }
  const bool was_in_vain = num_accepted == 0 && balance_ < 0.0f;
  if (was_in_vain || balance_ < kLeastBalance) Rest();
}

void NgramDrafter::Rest() {
  silent_until_ = tokens_.size() + static_cast<size_t>(pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
  balance_ = 0.0f;
  draft_.clear();
}

}  // namespace pagoda::engine
