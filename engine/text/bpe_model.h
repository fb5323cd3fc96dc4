#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/token_model.h"

namespace pagoda::engine {

// Byte-pair encoding over bytes. Merges are read as "a b" or as ["a", "b"]; both parts and the
// result of each must be in the vocabulary. With ignore_merges a piece that is a token as a whole
// is that token, whatever the merges give.
absl::StatusOr<std::unique_ptr<TokenModel>> MakeBpeModel(const TokenModelParts& parts);

}  // namespace pagoda::engine
