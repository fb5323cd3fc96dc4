#pragma once

#include <cstdint>
#include <string>

#include "absl/base/call_once.h"
#include "engine/text/tokenizer.h"

namespace pagoda::engine {

// The bytes of a tokenizer's tokens as guided::TokenTrie, made when the first constraint needs them
// (a tenth of a second for a large vocabulary). Special tokens have none. Thread-safe.
class GuidedVocabulary {
 public:
  // `tokenizer` outlives this; null: an empty vocabulary. Ids from `vocab_size` on are left out.
  GuidedVocabulary(const Tokenizer* tokenizer, int32_t vocab_size)
      : tokenizer_(tokenizer), vocab_size_(vocab_size) {}

  const std::string& bytes() const;

 private:
  const Tokenizer* const tokenizer_;
  const int32_t vocab_size_;
  mutable absl::once_flag once_;
  mutable std::string bytes_;
};

}  // namespace pagoda::engine
