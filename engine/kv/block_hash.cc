#include "engine/kv/block_hash.h"

#include <cstring>
#include <random>
#include <string>
#include <xxhash.h>

#include "kernels/base/check.h"

namespace pagoda::engine {
namespace {

// Most tokens hashed without a copy to the heap: block sizes of today.
constexpr size_t kMaxInlineTokens = 128;
constexpr size_t kRandomKeyWords = 8;

void AppendBytes(absl::string_view bytes, std::string* out) {
  const uint64_t size = bytes.size();
  out->append(reinterpret_cast<const char*>(&size), sizeof(size));
  out->append(bytes.data(), bytes.size());
}

void AppendNumber(uint64_t number, std::string* out) {
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

}  // namespace

BlockHasher::BlockHasher(absl::string_view key) {
  // XXH3 wants a secret of high entropy: expand the key, each part with a seed of its own.
  for (size_t i = 0; i < kSecretBytes / sizeof(XXH128_hash_t); ++i) {
    const XXH128_hash_t part = XXH3_128bits_withSeed(key.data(), key.size(), i + 1);
    std::memcpy(secret_.data() + i * sizeof(part), &part, sizeof(part));
  }
}

std::string BlockHasher::RandomKey() {
  std::random_device random;
  std::string key;
  for (size_t i = 0; i < kRandomKeyWords; ++i) {
    const uint32_t word = random();
    key.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return key;
}

BlockHash BlockHasher::Root(const CacheScope& scope) const {
  // Every part has a fixed size or its length before it, so that no two scopes give the same bytes.
  std::string bytes;
  AppendNumber(scope.model_generation, &bytes);
  AppendNumber(scope.adapter_generation, &bytes);
  AppendBytes(scope.tenant, &bytes);
  AppendBytes(scope.salt, &bytes);
  AppendBytes(scope.extra, &bytes);
  const XXH128_hash_t hash =
      XXH3_128bits_withSecret(bytes.data(), bytes.size(), secret_.data(), secret_.size());
  return {.low = hash.low64, .high = hash.high64};
}

BlockHash BlockHasher::Chain(const BlockHash& parent, absl::Span<const TokenId> tokens) const {
  const size_t num_bytes = sizeof(parent) + tokens.size() * sizeof(TokenId);
  char inline_bytes[sizeof(BlockHash) + kMaxInlineTokens * sizeof(TokenId)];
  std::string heap_bytes;
  char* bytes = inline_bytes;
  if (tokens.size() > kMaxInlineTokens) {
    heap_bytes.resize(num_bytes);
    bytes = heap_bytes.data();
  }
  std::memcpy(bytes, &parent, sizeof(parent));
  std::memcpy(bytes + sizeof(parent), tokens.data(), tokens.size() * sizeof(TokenId));
  const XXH128_hash_t hash =
      XXH3_128bits_withSecret(bytes, num_bytes, secret_.data(), secret_.size());
  return {.low = hash.low64, .high = hash.high64};
}

}  // namespace pagoda::engine
