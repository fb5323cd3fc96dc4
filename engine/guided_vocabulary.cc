#include "engine/guided_vocabulary.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/guided/token_trie.h"

namespace pagoda::engine {

const std::string& GuidedVocabulary::bytes() const {
  absl::call_once(once_, [this] {
    std::vector<std::pair<absl::string_view, int32_t>> tokens;
    const int32_t size =
        tokenizer_ == nullptr ? 0 : std::min(vocab_size_, tokenizer_->vocab_size());
    for (TokenId id = 0; id < size; ++id) {
      if (!tokenizer_->IsSpecial(id)) tokens.emplace_back(tokenizer_->TokenBytes(id), id);
    }
    bytes_ = guided::TokenTrie(std::move(tokens)).Serialize();
  });
  return bytes_;
}

}  // namespace pagoda::engine
