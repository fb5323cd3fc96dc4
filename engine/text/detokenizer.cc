#include "engine/text/detokenizer.h"

#include <cstring>

#include "engine/text/utf8.h"

namespace pagoda::engine {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

void Detokenizer::Append(TokenId id, std::string* text) {
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return;
  absl::string_view bytes = tokenizer_->TokenBytes(id);
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
