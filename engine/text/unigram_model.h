#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/token_model.h"

namespace pagoda::engine {

// From an element of type "Unigram": of all ways to cut a piece into tokens, the one whose scores
// add up to most.
absl::StatusOr<std::unique_ptr<TokenModel>> MakeUnigramModel(const TokenModelParts& parts);

}  // namespace pagoda::engine
