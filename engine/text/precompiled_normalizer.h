#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/text/json_element.h"
#include "engine/text/normalizer.h"

namespace pagoda::engine {

// SentencePiece's table of character sequences and what they become: a double-array trie over UTF-8
// and the replacements, each ended by a zero byte. Immutable; thread-safe.
class CharacterMap {
 public:
  // From the bytes of the table. INVALID_ARGUMENT when they are not one.
  static absl::StatusOr<CharacterMap> Make(absl::string_view blob);

  struct Match {
    size_t num_bytes;
    absl::string_view replacement;
  };
  // Of the sequences that `text` begins with, the shortest or the longest; absent when there is
  // none.
  absl::optional<Match> Shortest(absl::string_view text) const;
  absl::optional<Match> Longest(absl::string_view text) const;

 private:
  absl::optional<Match> Find(absl::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

// From an element of type "Precompiled".
absl::StatusOr<std::unique_ptr<Normalizer>> MakePrecompiledNormalizer(const JsonElement& element);

}  // namespace pagoda::engine
