#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/ids.h"

namespace pagoda::engine {

// Drafts what one sequence may say next from what it has said, prompt included: the tokens that
// followed the last occurrence of its last kNgramTokens tokens. A draft costs a wait for the last
// token and a row's work per token, so this keeps account of what drafts have brought and stays
// silent for a while, longer each time, when they do not pay. A function of the tokens and of the
// results alone. Thread-compatible.
class NgramDrafter {
 public:
  static constexpr size_t kNgramTokens = 3;

  // REQUIRES: max_draft_tokens >= 1.
  explicit NgramDrafter(int32_t max_draft_tokens);

  // The sequence has these tokens more. Constant time per token, on average.
  void Add(absl::Span<const TokenId> tokens);
  void Add(TokenId token) { Add(absl::MakeConstSpan(&token, 1)); }
  // Makes the draft of what follows the tokens added so far; it may be empty. REQUIRES: called once
  // after tokens were added.
  void Propose();
  // Of the last Propose. A longer occurrence and drafts that were accepted make it longer, up to
  // max_draft_tokens.
  absl::Span<const TokenId> draft() const { return draft_; }
  // A step has tried the first `num_drafted` tokens of a draft, and the first `num_accepted` of
  // them were what the sequence said.
  void NoteResult(int32_t num_drafted, int32_t num_accepted);

 private:
  // Entry of index_ for the kNgramTokens tokens that end before `end`: theirs, or a free one.
  size_t EntryOf(int32_t end) const;
  void Grow();
  // Tokens before `end` that equal the last ones, up to a bound.
  int32_t MatchLength(int32_t end) const;
  void Rest();

  const int32_t max_draft_tokens_;
  std::vector<TokenId> tokens_;
  // Open addressing: where the last occurrence of an n-gram ends; 0: free.
  std::vector<int32_t> index_;
  size_t num_entries_ = 0;
  // Where the occurrence before the last tokens ends; 0: there is none.
  int32_t match_end_ = 0;
  std::vector<TokenId> draft_;

  // ---- Account
  int32_t length_;           // of the next draft, at most
  float balance_ = 0.0f;     // steps saved by recent drafts, less what they cost
  int32_t pause_;            // tokens of the next rest
  size_t silent_until_ = 0;  // number of tokens
  // A draft was made whose first token did not come before it could be tried.
  bool has_waited_ = false;
};

}  // namespace pagoda::engine
