#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/token_model.h"

namespace pagoda::engine {

// From an element of type "WordPiece": the longest token that a word begins with, then the longest
// continuation, and so on; a word that cannot be cut so is unknown as a whole.
absl::StatusOr<std::unique_ptr<TokenModel>> MakeWordPieceModel(const TokenModelParts& parts);

}  // namespace pagoda::engine
