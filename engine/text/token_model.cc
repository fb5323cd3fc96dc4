#include "engine/text/token_model.h"

#include "absl/strings/str_cat.h"
#include "engine/text/bpe_model.h"
#include "engine/text/unigram_model.h"
#include "engine/text/word_level_model.h"
#include "engine/text/wordpiece_model.h"

namespace pagoda::engine {

absl::StatusOr<std::unique_ptr<TokenModel>> MakeTokenModel(const TokenModelParts& parts) {
  const absl::string_view type = parts.element.Type();
  // Old files leave the type out; merges tell a BPE model.
  if (type == "BPE" || (type.empty() && parts.element.Find("merges"))) return MakeBpeModel(parts);
  if (type == "Unigram") return MakeUnigramModel(parts);
  if (type == "WordPiece") return MakeWordPieceModel(parts);
  if (type == "WordLevel") return MakeWordLevelModel(parts);
  return parts.element.Error(absl::StrCat("type \"", type, "\" is not supported"));
}

}  // namespace pagoda::engine
