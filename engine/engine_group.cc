#include "engine/engine_group.h"

#include <cstddef>
#include <random>
#include <string>

namespace pagoda::engine {
namespace {

// 32-bit words of a random key of the prefix hash.
constexpr size_t kRandomKeyWords = 8;

std::string RandomKey() {
  std::random_device random;
  std::string key;
  for (size_t i = 0; i < kRandomKeyWords; ++i) {
    const uint32_t word = random();
    key.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return key;
}

}  // namespace

EngineGroup::EngineGroup(absl::string_view prefix_hash_key)
    : hasher(prefix_hash_key.empty() ? RandomKey() : std::string(prefix_hash_key)) {}

}  // namespace pagoda::engine
