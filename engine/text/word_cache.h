#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/ids.h"

namespace pagoda::engine {

// Words that were encoded lately and their ids: direct-mapped, so its memory is fixed and a lookup
// touches one cache line. Thread-compatible.
class WordCache {
 public:
  WordCache() : entries_(kNumEntries) {}

  static bool Fits(absl::string_view word) { return !word.empty() && word.size() <= kMaxWordBytes; }

  // Where `word` is or belongs. REQUIRES: Fits(word).
  size_t IndexOf(absl::string_view word) const {
    uint64_t first = 0, last = 0, middle = 0;
    if (word.size() >= 8) {
      std::memcpy(&first, word.data(), 8);
      std::memcpy(&last, word.data() + word.size() - 8, 8);
      std::memcpy(&middle, word.data() + (word.size() - 8) / 2, 8);
    } else {
      std::memcpy(&first, word.data(), word.size());
    }
    uint64_t hash = first * 0x9E3779B97F4A7C15u ^ (middle ^ word.size()) * 0xC2B2AE3D27D4EB4Fu;
    hash ^= hash >> 32;
    hash = (hash ^ last) * 0x165667B19E3779F9u;
    return hash >> (64 - kLog2NumEntries);
  }

  // The ids at `index` when they are those of `word`; else empty.
  absl::Span<const TokenId> Find(size_t index, absl::string_view word) const {
    const Entry& entry = entries_[index];
    if (entry.num_word_bytes != word.size() ||
        std::memcmp(entry.word.data(), word.data(), word.size()) != 0)
      return {};
    return absl::MakeConstSpan(entry.ids.data(), entry.num_ids);
  }

  // Replaces what is at `index`; words of too many ids are left out.
  void Insert(size_t index, absl::string_view word, absl::Span<const TokenId> ids) {
    if (ids.empty() || ids.size() > kMaxIds) return;
    Entry& entry = entries_[index];
    entry.num_word_bytes = static_cast<uint8_t>(word.size());
    entry.num_ids = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.word.data(), word.data(), word.size());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  // 64 bytes an entry: nearly every word of a text in Latin script fits, and words of more ids are
  // too rare to matter.
  static constexpr size_t kMaxWordBytes = 22;
  static constexpr size_t kMaxIds = 10;
  // 1 MiB: more than the different words of most texts; a larger one gains little since it leaves
  // the L2 cache.
  static constexpr int kLog2NumEntries = 14;
  static constexpr size_t kNumEntries = size_t{1} << kLog2NumEntries;

  struct alignas(64) Entry {
    uint8_t num_word_bytes = 0;
    uint8_t num_ids = 0;
    std::array<char, kMaxWordBytes> word;
    std::array<TokenId, kMaxIds> ids;
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<Entry> entries_;
};

}  // namespace pagoda::engine
