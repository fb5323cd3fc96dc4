#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/ids.h"
#include "pagoda/internal/v1/config.pb.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::engine {

// Bounds that every plan keeps.
struct StepLimits {
  int32_t num_slots = 0;
  int32_t max_step_tokens = 0;  // over all rows of a step
  int32_t max_model_len = 0;    // tokens of a sequence
  int32_t vocab_size = 0;       // ids that exist; the model may have rows of padding above them
  int32_t block_size = 0;
  int32_t num_blocks = 0;

  int32_t max_blocks_per_sequence() const { return (max_model_len + block_size - 1) / block_size; }
};

// One row of a plan with what the slot says about it.
struct StepRow {
  int32_t slot = 0;
  int32_t first_position = 0;
  int32_t num_tokens = 0;
  int32_t num_drafts = 0;  // the last of num_tokens
  bool samples = false;

  int32_t end_position() const { return first_position + num_tokens; }
};

// A block of the KV pool that is to have the content of another; one entry of CopyBlocksParams.
struct BlockCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// What a worker knows of one running sequence.
struct SlotState {
  bool live = false;
  // Counts the sequences that have had this slot, so that a late result finds out that its sequence
  // is gone.
  uint64_t generation = 0;
  // Tokens whose values are known here. A sampled token joins them when its result is read.
  std::vector<TokenId> tokens;
  // Of the whole sequence, sampled tokens whose values are still on the device included.
  int32_t num_tokens = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_computed_tokens = 0;
  // Of its row in flight: what may follow `tokens` as they were before it. Empty once that row's
  // result has been read.
  std::vector<TokenId> draft;
  // Append-only while the sequence has the slot.
  std::vector<int32_t> blocks;
  internal::v1::RowSampling sampling;
};

// The worker's side of plans: the state of every slot, changed by deltas. Each index of a plan is
// checked before it is used; a plan that breaks a rule of worker.proto is an INTERNAL error that
// names the rule, since the daemon makes plans. After an error the table is undefined: the worker
// ends. Thread-compatible.
class SlotTable {
 public:
  explicit SlotTable(const StepLimits& limits);

  // Applies a plan and returns its rows in the order of the plan, valid until the next call.
  absl::StatusOr<absl::Span<const StepRow>> Apply(const internal::v1::StepPlan& plan);
  // The value of the oldest token of the slot that is not known yet; ignored if the slot has
  // another sequence by now.
  void AppendKnownToken(int32_t slot, uint64_t generation, TokenId token);
  // What a row with a draft sampled at `position`, in order of positions: true if the tokens before
  // it have turned out to be those it was sampled after, so that it is the sequence's. After the
  // last of them the draft is gone, and the slot has the tokens that were right.
  bool AcceptDrafted(int32_t slot, uint64_t generation, int32_t position, TokenId token);
  // Forgets every sequence; the next plan is step 1.
  void Reset();

  // Of the last plan, before its rows are computed.
  absl::Span<const BlockCopy> block_copies() const { return block_copies_; }
  const SlotState& slot(int32_t idx) const { return slots_[static_cast<size_t>(idx)]; }
  const StepLimits& limits() const { return limits_; }
  // REQUIRES: no slot has a sequence.
  void set_num_blocks(int32_t num_blocks) { limits_.num_blocks = num_blocks; }

 private:
  absl::Status Release(uint32_t slot_idx);
  absl::Status Start(const internal::v1::NewSequence& sequence);
  absl::Status AppendBlocks(const internal::v1::StepPlan& plan);
  absl::Status Force(const internal::v1::ForcedToken& forced);
  // `next_draft` counts the plan's drafts that rows before have had.
  absl::Status AddRow(const internal::v1::StepPlan& plan, int row_idx, int* next_draft);
  absl::Status TakeDraft(const internal::v1::Draft& draft, SlotState* slot) const;
  absl::StatusOr<SlotState*> LiveSlot(uint32_t slot_idx, const char* field);
  absl::Status AddBlock(SlotState& slot, uint32_t block, const char* field);
  absl::Status NoteCopiedBlock(const internal::v1::NewSequence& sequence, const SlotState& slot);
  absl::Status CheckSampling(const internal::v1::RowSampling& sampling) const;

  StepLimits limits_;
  uint64_t last_step_id_ = 0;
  std::vector<SlotState> slots_;
  // Step that last had a row of the slot, to find a slot that a plan names twice.
  std::vector<uint64_t> last_row_step_;
  std::vector<StepRow> rows_;
  std::vector<BlockCopy> block_copies_;
};

}  // namespace pagoda::engine
