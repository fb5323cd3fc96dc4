#include "engine/text/word_level_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "engine/text/word_table.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

class WordLevelModel final : public TokenModel {
 public:
  WordLevelModel(WordTable words, absl::optional<TokenId> unknown_id)
      : words_(std::move(words)), unknown_id_(unknown_id) {}

  absl::Status Encode(absl::string_view piece, Scratch&, std::vector<TokenId>* ids) const override {
    const TokenId word = words_.Find(piece);
    if (word != WordTable::kNoToken) {
      ids->push_back(word);
    } else if (unknown_id_) {
      ids->push_back(*unknown_id_);
    } else {
      return absl::InvalidArgumentError(
          "text holds a word that the tokenizer's vocabulary does not have, nor a token for "
          "unknown ones");
    }
    return absl::OkStatus();
  }

 private:
  const WordTable words_;
  const absl::optional<TokenId> unknown_id_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenModel>> MakeWordLevelModel(const TokenModelParts& parts) {
  const JsonElement& element = parts.element;
  if (parts.is_byte_level)
    return element.Error("a WordLevel model after the pre-tokenizer ByteLevel is not supported");
  TokenBytesTable words;
  for (TokenId id = 0; id < parts.vocabulary.size(); ++id) {
    const absl::string_view spelling = parts.vocabulary.Spelling(id).value_or("");
    words.Append(parts.is_hidden[id] ? absl::string_view() : spelling);
  }
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view unknown, element.StringOr("unk_token", "<unk>"));
  return std::make_unique<WordLevelModel>(WordTable(std::move(words)),
                                          parts.vocabulary.Find(unknown));
}

}  // namespace pagoda::engine
