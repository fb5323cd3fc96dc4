#pragma once

#include <cstddef>

namespace pagoda::engine {

// Asks for all cache lines of memory that is read soon.
inline void PrefetchBytes(const void* begin, size_t num_bytes) {
  constexpr size_t kCacheLineBytes = 64;
  for (size_t i = 0; i < num_bytes; i += kCacheLineBytes) {
    __builtin_prefetch(static_cast<const char*>(begin) + i);
  }
}

}  // namespace pagoda::engine
