#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/ids.h"
#include "engine/text/json_element.h"
#include "engine/text/vocabulary.h"

namespace pagoda::engine {

// The bytes that each token adds to a text, all in one string. Immutable once filled; thread-safe.
class TokenBytesTable {
 public:
  // The next id's bytes.
  void Append(absl::string_view bytes) {
    bytes_.append(bytes.data(), bytes.size());
    ends_.push_back(static_cast<uint32_t>(bytes_.size()));
  }

  TokenId size() const { return static_cast<TokenId>(ends_.size()); }
  // Empty for unknown ids.
  absl::string_view operator[](TokenId id) const {
    if (static_cast<uint32_t>(id) >= ends_.size()) return {};
    const uint32_t begin = id == 0 ? 0 : ends_[id - 1];
    return absl::string_view(bytes_).substr(begin, ends_[id] - begin);
  }

 private:
  std::string bytes_;
  std::vector<uint32_t> ends_;
};

// A decoder as tables: what a token adds does not depend on others, but for the first.
struct DecodedVocabulary {
  TokenBytesTable bytes;
  absl::optional<TokenBytesTable> first_bytes = {};  // of a text's first token, where it differs
  // Text loses this at its front, up to so many times.
  std::string stripped = {};
  int max_stripped = 0;
};

// From the element "decoder", absent where there is none; INVALID_ARGUMENT naming what is not
// supported.
absl::StatusOr<DecodedVocabulary> DecodeVocabulary(const absl::optional<JsonElement>& decoder,
                                                   const Vocabulary& vocabulary);

}  // namespace pagoda::engine
