#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/slot_table.h"
#include "kernels/backend.h"

namespace pagoda::engine {

// What the layers of a step read beside weights: tokens, positions, places in the KV pool, block
// tables. The device's arrays have fixed addresses and capacities: one set of addresses for steps
// of no more rows than there are slots (decoding), one for larger ones. All but the tables travels
// in one copy.
//
// A step costs what it changes. Block tables stay on the device from step to step: a sequence keeps
// its row of the table while it runs (so the order of sequences in a batch is this class's, not the
// plan's), and only new block ids travel. Thread-compatible.
class BatchInputs {
 public:
  // `num_sets`: steps whose host memory may be in use at once.
  static absl::StatusOr<BatchInputs> Allocate(kernels::Backend& backend,
                                              const StepLimits& limits,
                                              int num_sets);

  // Lays out `rows` and enqueues the copies. With `padded_rows` the batch has so many rows, and as
  // many sequences or one a slot; those beyond what `rows` needs compute nothing that anybody
  // reads. REQUIRES: the step that used `set_idx` before has ended; rows is not empty; padded_rows
  // is 0, or no less than the rows there are and at most max_step_tokens.
  absl::Status Build(kernels::Backend& backend,
                     absl::Span<const StepRow> rows,
                     const SlotTable& slots,
                     int set_idx,
                     int32_t padded_rows = 0);
  // Enqueues the choice of tokens(): those that the host knows, and those that are still on the
  // device.
  absl::Status ResolveTokens(kernels::Backend& backend) const;

  // Enqueues the way of the step's block copies to the device: where they are there. REQUIRES:
  // Build was called for the step; at most one a slot.
  absl::StatusOr<const int32_t*> SendBlockCopies(kernels::Backend& backend,
                                                 absl::Span<const BlockCopy> copies) const;

  // ---- Of the last Build.
  const kernels::AttentionBatch& batch() const { return batch_; }
  // [num_rows] on the device.
  const int32_t* tokens() const { return device_.tokens; }
  // Batch row of the first token of rows[row_idx].
  int32_t first_batch_row(size_t row_idx) const { return first_batch_rows_[row_idx]; }

  // [num_slots] on the device: what each slot sampled last.
  int32_t* last_tokens() const { return device_.last_tokens; }

 private:
  // One step's arrays, on the host or on the device.
  struct Arrays {
    int32_t* host_tokens = nullptr;
    int32_t* source_slots = nullptr;
    int32_t* positions = nullptr;
    int32_t* kv_slots = nullptr;
    int32_t* row_offsets = nullptr;
    int32_t* context_lens = nullptr;
    int32_t* table_changes = nullptr;  // pairs: place in block_tables, block id
    int32_t* block_copies = nullptr;   // pairs: from, to
    int32_t* block_tables = nullptr;   // device only
    int32_t* tokens = nullptr;         // device only
    int32_t* last_tokens = nullptr;    // device only
  };
  struct ArraySet {
    Arrays small;  // room for a row a slot
    Arrays large;  // room for max_step_tokens rows

    const Arrays& For(const StepLimits& limits, int32_t num_rows) const {
      return num_rows <= limits.num_slots ? small : large;
    }
  };
  // What a row of the device's block table holds.
  struct TableRow {
    int32_t slot = -1;
    uint64_t generation = 0;
    size_t num_blocks = 0;
  };

  static size_t Lay(const StepLimits& limits, bool on_device, char* base, ArraySet* set);
  void ChooseOrder(absl::Span<const StepRow> rows, const SlotTable& slots);
  absl::Status FillSequence(const StepRow& row, const SlotState& slot, int32_t seq_idx);
  // Notes the blocks that the sequence's row of the device's table lacks.
  void NoteNewBlocks(const StepRow& row, const SlotState& slot, size_t seq_idx);
  // Enqueues their way there.
  absl::Status UpdateTables(kernels::Backend& backend) const;
  void Pad(size_t num_seqs, int32_t padded_rows);
  absl::Status CopyArrays(kernels::Backend& backend) const;

  StepLimits limits_;
  kernels::Buffer device_memory_;
  std::vector<kernels::Buffer> host_memory_;
  ArraySet device_set_;
  std::vector<ArraySet> host_sets_;

  std::vector<TableRow> table_rows_;
  std::vector<int32_t> table_row_of_slot_;  // where the slot's table is, if table_rows_ agrees
  std::vector<int32_t> row_at_seq_;         // plan row at each place of the batch
  std::vector<int32_t> first_batch_rows_;
  // Of the current Build.
  Arrays device_;
  Arrays host_;
  size_t num_table_changes_ = 0;
  kernels::AttentionBatch batch_;
};

}  // namespace pagoda::engine
