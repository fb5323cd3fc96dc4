#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/token_model.h"

namespace pagoda::engine {

// A model of type "WordLevel": a piece is a token, or unknown.
absl::StatusOr<std::unique_ptr<TokenModel>> MakeWordLevelModel(const TokenModelParts& parts);

}  // namespace pagoda::engine
