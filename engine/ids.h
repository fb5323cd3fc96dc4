#pragma once

#include <cstdint>

#include "absl/hash/hash.h"

namespace pagoda::engine {

// An index into a vocabulary.
using TokenId = int32_t;

// Ids of different kinds are different types.
template <typename Tag, typename Rep>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr bool operator==(Id a, Id b) { return a.value_ == b.value_; }
  friend constexpr bool operator<(Id a, Id b) { return a.value_ < b.value_; }
  template <typename H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_{};
};

// A live request, made by the daemon, never reused.
using RequestKey = Id<struct RequestKeyTag, uint64_t>;
// A block of the KV pool.
using BlockId = Id<struct BlockIdTag, uint32_t>;
// A running sequence's place in the worker's tables.
using SlotId = Id<struct SlotIdTag, uint32_t>;
// A step: 1, 2, 3, ...
using StepId = Id<struct StepIdTag, uint64_t>;

}  // namespace pagoda::engine
