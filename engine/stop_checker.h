#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/optional.h"
#include "engine/ids.h"
#include "engine/output.h"
#include "engine/prefetch.h"
#include "engine/request.h"
#include "engine/text/detokenizer.h"

namespace pagoda::engine {

// What ends the sequences of one request; made once from StopParams. Immutable.
struct StopRules {
  StopRules(const StopParams& params, int32_t max_output_tokens);

  // Inline, since every token of every sequence is looked up.
  using IdList = absl::InlinedVector<TokenId, 4>;

  IdList eos_token_ids;   // sorted; empty under ignore_eos
  IdList stop_token_ids;  // sorted
  absl::InlinedVector<std::string, 2> stop_strings;
  bool include_stop;
  int32_t min_tokens;
  int32_t max_output_tokens;  // of max_tokens and the context, the smaller
};

struct StopMatch {
  FinishReason reason = FinishReason::kStop;
  std::variant<std::monostate, std::string, TokenId> matched_stop;
};

// Decides after each token of one sequence whether it ends, and which text may be shown. The rules,
// all of them:
//
// - EOS and stop ids end the sequence. They count as completion tokens and are returned among the
// tokens; their text is
//   not returned. EOS wins where an id is both.
// - A stop string is found at the first byte that completes one, wherever tokens begin; of several
// that end there, the
//   longest. Text ends before the match (after it with include_stop). The matched tokens count and
//   are returned; whatever a step gave beyond the token that completed the match is dropped by the
//   caller.
// - Nothing of this happens within the first min_tokens tokens, and their text takes no part in
// matches.
// - The last of max_output_tokens tokens ends the sequence (kLength) unless something above does.
// - Text is held back only while the end of it is a proper prefix of a stop string; whatever is
// held when the sequence
//   ends otherwise is shown.
//
// All of this depends on the text alone, not on how steps cut it. Thread-compatible; small, one per
// sequence.
class StopChecker {
 public:
  // `rules` outlives this. No tokenizer: no text, and no stop strings.
  StopChecker(const StopRules* rules, const Tokenizer* tokenizer, bool skip_special_tokens);

  // Takes the sequence's token number `num_output_tokens` (from 1) and appends the text that it
  // sets free. Returns the end if this is one; no further token may be taken then.
  absl::optional<StopMatch> Accept(TokenId id, int32_t num_output_tokens, std::string* text);
  // Accept(id) follows soon: loads what it reads elsewhere.
  void Prefetch(TokenId id) const {
    PrefetchBytes(rules_, sizeof(*rules_));
    if (detokenizer_.has_value()) detokenizer_->Prefetch(id);
  }
  // The sequence ends without a stop string: shows everything.
  void Flush(std::string* text);

 private:
  bool EndsById(TokenId id, StopMatch* match) const;
  // Moves text from held_ to `text` as far as no stop string can begin in it; true when one is
  // complete.
  bool MatchStopStrings(size_t num_old_bytes, std::string* text, StopMatch* match);
  size_t NumHeldBytes() const;

  const StopRules* rules_;
  absl::optional<Detokenizer> detokenizer_;
  // End of the text that may be the beginning of a stop string.
  std::string held_;
};

}  // namespace pagoda::engine
