#pragma once

#include <cstdint>
#include <vector>

#include "engine/ids.h"

namespace pagoda::engine {

// What two adjacent tokens become, and how early: lower ranks merge first.
struct Merge {
  uint32_t rank;
  TokenId id;
};

// Pairs of tokens to merges: open addressing, at two thirds of the load at most, since encoding is
// little else than lookups here. Most find nothing, and a filter that stays in the L2 cache (512
// KiB for 280,000 merges, where the table takes 8 MiB) tells so for most of them.
// Thread-compatible.
class MergeTable {
 public:
  explicit MergeTable(size_t num_merges) {
    while (2 * capacity() < 3 * num_merges) --shift_;
    slots_.resize(capacity());
    filter_.resize(capacity() * kFilterBitsPerSlot / 64 + 1);
  }

  // Replaces an earlier merge of the same pair. REQUIRES: at most num_merges different pairs.
  void Insert(TokenId left, TokenId right, Merge merge) {
    const uint64_t pair = Pair(left, right);
    size_t i = Home(pair);
    while (slots_[i].pair != kNoPair && slots_[i].pair != pair) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {pair, merge};
    const uint64_t bit = FilterBit(pair);
    filter_[bit / 64] |= uint64_t{1} << bit % 64;
  }

  // Insert(left, right) follows soon.
  void Prefetch(TokenId left, TokenId right) const {
    const uint64_t pair = Pair(left, right);
    __builtin_prefetch(&slots_[Home(pair)], 1);
    __builtin_prefetch(&filter_[FilterBit(pair) / 64], 1);
  }

  // Null when the pair does not merge.
  const Merge* Find(TokenId left, TokenId right) const {
    const uint64_t pair = Pair(left, right);
    const uint64_t bit = FilterBit(pair);
    if ((filter_[bit / 64] >> bit % 64 & 1) == 0) return nullptr;
    for (size_t i = Home(pair);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].pair == pair) return &slots_[i].merge;
      if (slots_[i].pair == kNoPair) return nullptr;
    }
  }

 private:
  // No pair of ids, which are not negative.
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  struct Slot {
    uint64_t pair = kNoPair;
    Merge merge{};
  };

  static uint64_t Pair(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t capacity() const { return size_t{1} << (64 - shift_); }
  // Fibonacci hashing: the high bits of the product depend on all bits of the pair.
  size_t Home(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15u) >> shift_; }

  // As Home, to more bits.
  uint64_t FilterBit(uint64_t pair) const {
    return (pair * 0x9E3779B97F4A7C15u) >> (shift_ - kLog2FilterBitsPerSlot);
  }

  static constexpr int kLog2FilterBitsPerSlot = 3;
  static constexpr size_t kFilterBitsPerSlot = size_t{1} << kLog2FilterBitsPerSlot;

  int shift_ = 60;  // 64 - log2(capacity)
  std::vector<Slot> slots_;
  std::vector<uint64_t> filter_;
};

}  // namespace pagoda::engine
