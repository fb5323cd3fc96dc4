#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/ids.h"
#include "engine/sequence.h"

namespace pagoda::engine {

// One sequence's part in a step.
struct ScheduledRow {
  Sequence* sequence = nullptr;
  SlotId slot;
  int32_t num_tokens = 0;
  int32_t num_drafts = 0;    // the last of them: drafted, not known
  int32_t computed_end = 0;  // the sequence's num_computed after this row, if every draft is right
  bool samples = false;
  bool forces_token = false;  // its token is not the one that the worker sampled
  bool is_prefill = false;    // not the one token that a sequence in full flow computes
};

// A sequence that begins to run in this step, with the tokens that its blocks hold already.
struct Admission {
  Sequence* sequence = nullptr;
  int32_t num_computed_tokens = 0;
  // Where these end inside a block: the one that has them.
  std::optional<BlockId> copied_block;
};

// Table growth of a sequence that had its table before this step: entries from `first` on are new.
struct BlockGrowth {
  Sequence* sequence = nullptr;
  uint32_t group = 0;
  uint32_t first = 0;
};

// What the scheduler decided for one step: only what changed. Reused from step to step, so that a
// step in full flow allocates nothing. Sequences live until every row that names them is retired.
struct ScheduledStep {
  StepId id;
  std::vector<SlotId> released_slots;
  std::vector<Admission> admitted;
  std::vector<BlockGrowth> growth;
  std::vector<ScheduledRow> rows;
  int32_t num_tokens = 0;
  int32_t num_preemptions = 0;
  // Tokens looked up in the prefix index, and found.
  int64_t num_query_tokens = 0;
  int64_t num_hit_tokens = 0;
  // No row will ever come for these: nothing is left to compute, or one has outgrown the pool. Not
  // part of the plan.
  std::vector<Sequence*> exhausted;

  // Nothing to send.
  bool empty() const { return rows.empty(); }
  void Clear();
  // For tests and logs.
  std::string ToString() const;
};

}  // namespace pagoda::engine
