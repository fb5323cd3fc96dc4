#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "engine/ids.h"
#include "engine/text/tokenizer.h"

namespace pagoda::engine {

// Turns a sequence's tokens into text as they come. Every piece is valid UTF-8: an incomplete
// character is held back; bytes that can never become one are U+FFFD by the maximal-subpart rule.
// The pieces add up to one text under every chunking, to Decode of all ids where they begin a text.
// Thread-compatible; small, one per sequence.
class Detokenizer {
 public:
  // begins_text: the first token is a text's first, as in Decode of the ids alone; else the tokens
  // continue a text, and keep the blank that they begin with.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens, bool begins_text = false);

  // Appends the text that `id` completes.
  void Append(TokenId id, std::string* text);
  // Append(id) follows soon: loads the bytes.
  void Prefetch(TokenId id) const { __builtin_prefetch(tokenizer_->TokenBytes(id).data()); }
  // Appends what is held back, as U+FFFD; the sequence has ended.
  void Finish(std::string* text);

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  bool at_text_begin_;
  int strips_left_ = 0;  // of what a text loses at its front
  // Bytes of an incomplete character: at most 3.
  char pending_[4] = {};
  int num_pending_ = 0;
};

}  // namespace pagoda::engine
