#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "engine/ids.h"
#include "engine/text/json_element.h"
#include "engine/text/vocabulary.h"

namespace pagoda::engine {

// The special tokens around the ids of a text.
class PostProcessor {
 public:
  // From the element "post_processor", absent where there is none; INVALID_ARGUMENT naming what is
  // not supported.
  static absl::StatusOr<PostProcessor> Make(const absl::optional<JsonElement>& element,
                                            const Vocabulary& vocabulary);

  // Puts the tokens around *ids. Those at the front that *ids already begins with are not put there
  // twice.
  void Apply(std::vector<TokenId>* ids) const;

 private:
  absl::Status AddPair(const JsonElement& element, const Vocabulary& vocabulary);
  absl::Status AddTemplate(const JsonElement& element, const Vocabulary& vocabulary);
  absl::Status AddStep(const JsonElement& element, const Vocabulary& vocabulary);

  std::vector<TokenId> prefix_;
  std::vector<TokenId> suffix_;
};

}  // namespace pagoda::engine
