#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/model/slot_table.h"
#include "kernels/ops/sample.h"

namespace pagoda::engine {

// The distinct tokens of a sequence with their counts in its output, kept up as tokens become
// known. Thread-compatible.
class TokenCounts {
 public:
  // Counts the known tokens of the slot that are not counted yet; starts over for a new sequence.
  void Update(const SlotState& slot);
  // In order of first occurrence.
  const std::vector<kernels::PenaltyEntry>& entries() const { return entries_; }

 private:
  uint64_t generation_ = 0;
  size_t num_counted_ = 0;
  std::vector<kernels::PenaltyEntry> entries_;
  absl::flat_hash_map<TokenId, size_t> entry_of_;
};

}  // namespace pagoda::engine
