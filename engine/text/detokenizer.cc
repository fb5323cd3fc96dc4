#include "engine/text/detokenizer.h"

#include <cstring>

#include "absl/strings/strip.h"
#include "engine/text/utf8.h"

namespace pagoda::engine {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens, bool begins_text)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      at_text_begin_(begins_text),
      strips_left_(begins_text ? tokenizer->leading_strip().max_count : 0) {}

void Detokenizer::Append(TokenId id, std::string* text) {
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return;
  absl::string_view bytes =
      at_text_begin_ ? tokenizer_->FirstTokenBytes(id) : tokenizer_->TokenBytes(id);
  at_text_begin_ = false;
  while (strips_left_ > 0 && !bytes.empty()) {
    const bool strips = absl::ConsumePrefix(&bytes, tokenizer_->leading_strip().content);
    strips_left_ = strips ? strips_left_ - 1 : 0;
  }
  if (bytes.empty()) return;
  std::string joined;
  if (num_pending_ > 0) {
    joined.assign(pending_, num_pending_);
    joined.append(bytes.data(), bytes.size());
    bytes = joined;
  }
  num_pending_ = static_cast<int>(AppendUtf8(bytes, text));
  std::memcpy(pending_, bytes.data() + bytes.size() - num_pending_, num_pending_);
}

void Detokenizer::Finish(std::string* text) {
  // What is held back begins a character, so it is one maximal subpart.
  if (num_pending_ > 0) text->append("\xEF\xBF\xBD");
  num_pending_ = 0;
}

}  // namespace pagoda::engine
