#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/ids.h"
#include "engine/text/json_element.h"

namespace pagoda::engine {

// A vocabulary as its file spells it, for use while a tokenizer is loaded. Points into the
// JsonDocument. Thread-compatible.
class Vocabulary {
 public:
  // From the element "vocab" of a model: an object of spelling to id, or an array of [spelling,
  // score] by id.
  static absl::StatusOr<Vocabulary> Read(const JsonElement& vocab);

  // Adds a token that is not in the model's own vocabulary, or is there with the same id; `where`
  // is named in errors.
  absl::Status Add(absl::string_view spelling, int64_t id, const JsonElement& where);

  absl::optional<TokenId> Find(absl::string_view spelling) const;
  // Not set for ids that no token has.
  absl::optional<absl::string_view> Spelling(TokenId id) const;
  // One more than the largest id.
  TokenId size() const { return static_cast<TokenId>(spellings_.size()); }

 private:
  static absl::StatusOr<Vocabulary> ReadList(const JsonElement& vocab);

  std::vector<absl::string_view> spellings_;  // by id; a null data() for ids that no token has
  absl::flat_hash_map<absl::string_view, TokenId> ids_;
};

}  // namespace pagoda::engine
