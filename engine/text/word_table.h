#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "engine/ids.h"
#include "engine/text/token_decoder.h"

namespace pagoda::engine {

// Words to the ids of the tokens that they are: open addressing at half load at most, and all bytes
// in one string, since a vocabulary has 100,000 words and is loaded in a tenth of a second.
// Immutable; thread-safe.
class WordTable {
 public:
  static constexpr TokenId kNoToken = -1;

  WordTable() = default;
  // Of the words of ids 0, 1, ...; an empty one is none. Of equal words the lowest id counts.
  explicit WordTable(TokenBytesTable words) : words_(std::move(words)) {
    size_t capacity = 1;
    while (capacity < 2 * static_cast<size_t>(words_.size())) capacity *= 2;
    slots_.resize(capacity);
    // Slots lie anywhere in memory and are asked for ahead.
    constexpr TokenId kAhead = 16;
    std::array<uint64_t, kAhead> hashes;
    for (TokenId next = 0; next < words_.size() + kAhead; ++next) {
      if (next >= kAhead) Insert(next - kAhead, hashes[next % kAhead]);
      if (next >= words_.size()) continue;
      hashes[next % kAhead] = Hash(words_[next]);
      __builtin_prefetch(&slots_[hashes[next % kAhead] & (capacity - 1)], 1);
    }
  }

  // kNoToken: it is not one token.
  TokenId Find(absl::string_view word) const {
    return slots_.empty() ? kNoToken : slots_[SlotOf(word, Hash(word))].id;
  }

 private:
  // With half of each hash, so that few others' bytes are looked at.
  struct Slot {
    uint32_t tag = 0;
    TokenId id = kNoToken;
  };

  static uint64_t Hash(absl::string_view word) { return absl::Hash<absl::string_view>()(word); }
  static uint32_t Tag(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  void Insert(TokenId id, uint64_t hash) {
    if (words_[id].empty()) return;
    Slot& slot = slots_[SlotOf(words_[id], hash)];
    if (slot.id == kNoToken) slot = {.tag = Tag(hash), .id = id};
  }
  // Where the word is, or would be put.
  size_t SlotOf(absl::string_view word, uint64_t hash) const {
    size_t i = hash & (slots_.size() - 1);
    while (slots_[i].id != kNoToken &&
           !(slots_[i].tag == Tag(hash) && words_[slots_[i].id] == word)) {
      i = (i + 1) & (slots_.size() - 1);
    }
    return i;
  }

  TokenBytesTable words_;    // by id
  std::vector<Slot> slots_;  // a power of two
};

}  // namespace pagoda::engine
