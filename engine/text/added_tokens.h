#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/ids.h"
#include "engine/text/json_element.h"
#include "engine/text/regex.h"

namespace pagoda::engine {

// A token that is matched in the text itself, before the pre-tokenizer.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool is_special = false;   // a control token
  bool normalized = false;   // matched in normalized text, in what the tokens that are not leave
  bool strip_left = false;   // takes the white space before it
  bool strip_right = false;  // takes the white space after it
  bool single_word = false;  // not between word characters
};

// From the element "added_tokens", which may be absent or null.
absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const JsonElement& tokenizer);

// A stretch of text, or the token that it is.
struct TextSection {
  absl::string_view text;
  absl::optional<TokenId> token;
};

// Finds a set of added tokens in text: the leftmost first, of those the longest. Immutable;
// thread-safe.
class AddedTokenMatcher {
 public:
  // Of tokens that are `normalized`, or of those that are not.
  static absl::StatusOr<AddedTokenMatcher> Make(const std::vector<AddedToken>& tokens,
                                                bool normalized);
  AddedTokenMatcher(AddedTokenMatcher&&);
  ~AddedTokenMatcher();

  struct Input {
    absl::string_view text;
    bool match_special = false;  // special tokens are found too
    // Limits match_special to text whose every byte is '\1' here; empty: no limit.
    absl::string_view trusted;
  };

  // Replaces *sections by those of the text, in order, without empty ones.
  absl::Status Split(const Input& input,
                     RegexScratch& scratch,
                     std::vector<TextSection>* sections) const;

 private:
  class Trie;
  AddedTokenMatcher();
  absl::Status SplitText(const Trie& trie,
                         const Input& input,
                         RegexScratch& scratch,
                         std::vector<TextSection>* sections) const;
  absl::StatusOr<bool> IsInsideWord(absl::string_view text,
                                    size_t begin,
                                    size_t end,
                                    RegexScratch& scratch) const;

  // [0] without special tokens, [1] with them; null: none.
  std::unique_ptr<const Trie> tries_[2];
  absl::optional<Regex> word_at_start_;
};

}  // namespace pagoda::engine
