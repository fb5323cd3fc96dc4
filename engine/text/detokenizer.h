#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "engine/ids.h"
#include "engine/text/tokenizer.h"

namespace pagoda::engine {

// Turns a sequence's tokens into text as they come. Every piece is valid UTF-8: an incomplete
// character is held back; bytes that can never become one are U+FFFD by the maximal-subpart rule.
// The pieces add up to Decode of all ids. Thread-compatible; small, one per sequence.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens);

  // Appends the text that `id` completes.
  void Append(TokenId id, std::string* text);
  // Appends what is held back, as U+FFFD; the sequence has ended.
  void Finish(std::string* text);

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  // Bytes of an incomplete character: at most 3.
  char pending_[4] = {};
  int num_pending_ = 0;
};

}  // namespace pagoda::engine
