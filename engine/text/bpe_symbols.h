#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/ids.h"
#include "engine/text/token_model.h"

namespace pagoda::engine {

// The tokens that merging a word starts from: of its bytes, where the vocabulary is spelled in the
// byte alphabet, else of its characters. Immutable; thread-safe.
class BpeSymbols {
 public:
  static absl::StatusOr<BpeSymbols> Make(const TokenModelParts& parts);

  // Appends to *ids. What has no token becomes its bytes' tokens, else the unknown token;
  // INVALID_ARGUMENT when there is neither.
  absl::Status Append(absl::string_view word, std::vector<TokenId>* ids) const;

  // The token of a character or, byte-level, of a byte below 0x80; -1: none.
  TokenId Find(char32_t character) const;

 private:
  static constexpr TokenId kNone = -1;

  absl::Status AppendBytes(absl::string_view word, std::vector<TokenId>* ids) const;
  absl::Status AppendCharacters(absl::string_view word, std::vector<TokenId>* ids) const;
  // The tokens of a character's bytes; false: some byte has none.
  bool FallBack(absl::string_view character, std::vector<TokenId>* ids) const;

  bool is_byte_level_ = true;
  // Byte-level: of bytes. Else: of bytes that characters without a token become.
  std::array<TokenId, 256> byte_ids_;
  std::vector<TokenId> basic_plane_;  // by character below U+10000
  absl::flat_hash_map<char32_t, TokenId> other_planes_;
  absl::optional<TokenId> unknown_id_;
  bool fuse_unknown_ = false;  // a run of unknown characters is one token
};

}  // namespace pagoda::engine
