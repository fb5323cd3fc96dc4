#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "engine/ids.h"
#include "engine/kv/block_hash.h"
#include "kernels/base/mutex.h"

namespace pagoda::engine {

// Prompts of requests that made workers fail: not taken again for a while. Thread-safe.
class Quarantine {
 public:
  static constexpr int64_t kDurationNs = int64_t{600} * 1'000'000'000;

  // `hasher` outlives this.
  explicit Quarantine(const BlockHasher* hasher) : hasher_(hasher) {}

  void Add(absl::Span<const TokenId> prompt, int64_t now_ns);
  // Costs nothing while nobody is in it.
  bool Holds(absl::Span<const TokenId> prompt, int64_t now_ns) const;

 private:
  // Beyond, the oldest is let go.
  static constexpr size_t kMaxEntries = 256;

  struct Entry {
    BlockHash prompt;
    int64_t until_ns;
  };
  BlockHash NameOf(absl::Span<const TokenId> prompt) const;

  const BlockHasher* const hasher_;
  std::atomic<bool> is_empty_{true};
  mutable Mutex mutex_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace pagoda::engine
