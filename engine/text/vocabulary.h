#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/hash/hash.h"
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
  Vocabulary();

  // From the element "vocab" of a model: an object of spelling to id, or an array of [spelling,
  // score] by id.
  static absl::StatusOr<Vocabulary> Read(const JsonElement& vocab);

  // Adds a token that is not in the model's own vocabulary, or is there with the same id; `where`
  // is named in errors.
  absl::Status Add(absl::string_view spelling, int64_t id, const JsonElement& where);

  absl::optional<TokenId> Find(absl::string_view spelling) const {
    return Find(spelling, Hash(spelling));
  }
  // The same in steps, for many at once: prefetching first saves most of the time.
  static uint64_t Hash(absl::string_view spelling) {
    return absl::Hash<absl::string_view>()(spelling);
  }
  void Prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[Home(hash)]); }
  // ... of what its home holds: nearly always itself.
  void PrefetchSpelling(uint64_t hash) const {
    const TokenId id = slots_[Home(hash)].id;
    if (id != kNoToken) __builtin_prefetch(&spellings_[id]);
  }
  void PrefetchText(uint64_t hash) const {
    const TokenId id = slots_[Home(hash)].id;
    if (id != kNoToken) __builtin_prefetch(spellings_[id].data());
  }
  absl::optional<TokenId> Find(absl::string_view spelling, uint64_t hash) const;
  // Not set for ids that no token has.
  absl::optional<absl::string_view> Spelling(TokenId id) const;
  // One more than the largest id.
  TokenId size() const { return static_cast<TokenId>(spellings_.size()); }

 private:
  static absl::StatusOr<Vocabulary> ReadList(const JsonElement& vocab);

  // Spellings to ids: open addressing at half load at most, with half of each hash beside the id,
  // so that few others' spellings are looked at.
  static constexpr TokenId kNoToken = -1;
  struct Slot {
    uint32_t tag = 0;
    TokenId id = kNoToken;
  };

  size_t Home(uint64_t hash) const { return hash & (slots_.size() - 1); }
  // Where the spelling is, or would be put.
  size_t SlotOf(absl::string_view spelling, uint64_t hash) const;
  void Reserve(size_t num_tokens);

  std::vector<absl::string_view> spellings_;  // by id; a null data() for ids that no token has
  std::vector<Slot> slots_;                   // a power of two
  size_t num_spellings_ = 0;
};

}  // namespace pagoda::engine
