#include "engine/text/wordpiece_model.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/text/byte_trie.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

struct WordPieceTables {
  ByteTrie starts;         // of words
  ByteTrie continuations;  // without their prefix
  TokenId unknown_id = 0;
  int64_t max_word_characters = 100;
};

int64_t NumCharacters(absl::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

class WordPieceModel final : public TokenModel {
 public:
  explicit WordPieceModel(WordPieceTables tables) : tables_(std::move(tables)) {}

  absl::Status Encode(absl::string_view piece, Scratch&, std::vector<TokenId>* ids) const override {
    const size_t size_before = ids->size();
    bool is_known = NumCharacters(piece) <= tables_.max_word_characters;
    for (size_t begin = 0; begin < piece.size() && is_known;) {
      const ByteTrie& trie = begin == 0 ? tables_.starts : tables_.continuations;
      ByteTrie::Node node = ByteTrie::kRoot;
      TokenId longest = ByteTrie::kNoToken;
      size_t longest_end = begin;
      for (size_t i = begin; i < piece.size(); ++i) {
        node = trie.Child(node, static_cast<uint8_t>(piece[i]));
        if (node == ByteTrie::kNoNode) break;
        if (trie.Token(node) == ByteTrie::kNoToken) continue;
        longest = trie.Token(node);
        longest_end = i + 1;
      }
      is_known = longest != ByteTrie::kNoToken;
      if (is_known) ids->push_back(longest);
      begin = longest_end;
    }
    if (!is_known) {
      ids->resize(size_before);
      ids->push_back(tables_.unknown_id);
    }
    return absl::OkStatus();
  }

 private:
  const WordPieceTables tables_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenModel>> MakeWordPieceModel(const TokenModelParts& parts) {
  const JsonElement& element = parts.element;
  if (parts.is_byte_level)
    return element.Error("a WordPiece model after the pre-tokenizer ByteLevel is not supported");
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view prefix,
                          element.StringOr("continuing_subword_prefix", "##"));
  std::vector<std::pair<absl::string_view, TokenId>> starts, continuations;
  for (TokenId id = 0; id < parts.vocabulary.size(); ++id) {
    absl::string_view spelling = parts.vocabulary.Spelling(id).value_or("");
    if (spelling.empty() || parts.is_hidden[id]) continue;
    starts.emplace_back(spelling, id);
    if (absl::ConsumePrefix(&spelling, prefix) && !spelling.empty())
      continuations.emplace_back(spelling, id);
  }
  WordPieceTables tables = {.starts = ByteTrie(std::move(starts)),
                            .continuations = ByteTrie(std::move(continuations))};
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view unknown, element.StringOr("unk_token", "[UNK]"));
  const absl::optional<TokenId> unknown_id = parts.vocabulary.Find(unknown);
  if (!unknown_id)
    return element.Error(absl::StrCat("unk_token \"", unknown, "\" is not in the vocabulary"));
  tables.unknown_id = *unknown_id;
  if (absl::optional<JsonElement> most = element.Find("max_input_chars_per_word")) {
    PAGODA_ASSIGN_OR_RETURN(tables.max_word_characters, most->Integer());
  }
  return std::make_unique<WordPieceModel>(std::move(tables));
}

}  // namespace pagoda::engine
