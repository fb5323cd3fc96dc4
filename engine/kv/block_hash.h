#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/ids.h"

namespace pagoda::engine {

// Names the content of a full block: its tokens, all tokens before them, and what else its keys and
// values depend on.
struct BlockHash {
  uint64_t low = 0;
  uint64_t high = 0;

  // What events about blocks carry: fits a signed 64-bit integer.
  uint64_t EventId() const { return low & (UINT64_MAX >> 1); }

  friend bool operator==(const BlockHash& a, const BlockHash& b) {
    return a.low == b.low && a.high == b.high;
  }
  template <typename H>
  friend H AbslHashValue(H h, const BlockHash& hash) {
    return H::combine(std::move(h), hash.low, hash.high);
  }
};

// Requests share cached blocks only when all of this is equal.
struct CacheScope {
  uint64_t model_generation = 0;    // grows when weights are reloaded
  uint64_t adapter_generation = 0;  // of the adapter's content, not its name; 0: the base model
  absl::string_view tenant;         // who was authenticated, never what a client says
  absl::string_view salt;           // of the client, within its tenant
  absl::string_view extra;          // anything else that keys and values depend on
};

// Keyed 128-bit XXH3 chains. Whoever does not know the key cannot aim for a collision; blocks are
// compared by tokens besides (PrefixIndex). Immutable, thread-safe.
class BlockHasher {
 public:
  // The key may have any length; servers with equal keys give equal hashes.
  explicit BlockHasher(absl::string_view key);
  // One that nobody can know.
  static std::string RandomKey();

  // Start of every chain of a scope.
  BlockHash Root(const CacheScope& scope) const;
  // Hash of the block that holds `tokens` after a prefix whose last full block (or root) is
  // `parent`.
  BlockHash Chain(const BlockHash& parent, absl::Span<const TokenId> tokens) const;

 private:
  // XXH3 takes its key as this many bytes of secret (XXH3_SECRET_DEFAULT_SIZE).
  static constexpr size_t kSecretBytes = 192;

  std::array<uint8_t, kSecretBytes> secret_;
};

}  // namespace pagoda::engine
