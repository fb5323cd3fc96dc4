#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace pagoda::kernels::cuda {

// How one step's attention is divided among thread blocks: made on the host once a step, read by
// the kernels of all layers from one device buffer whose layout depends only on AttentionPlanShape,
// so that graphs can be replayed.
//
// Decode. A sequence with few rows is kv_heads * row_tiles *items*, each a walk over the same tiles
// of 64 tokens. Items are laid end to end, sequence by sequence, and the line is cut into one piece
// per thread block of a persistent grid, pieces of equal cost. An item that a cut goes through is
// merged by the last of its blocks to finish; one that no cut goes through is written directly. As
// every block has the same cost, order does not matter for balance, and the line stays in the order
// of the batch.
//
// Prefill. Tiles of query rows, longest first; the blocks of a persistent grid take them in turn,
// back and forth (0 1 2 3, 3 2 1 0, ...), so that none is always the first.

inline constexpr int32_t kKvTileTokens = 64;

// One item's walk, shared by the heads and row tiles of a sequence.
struct DecodeSeq {
  int32_t seq_idx = 0;
  int32_t first_tile = 0;  // first tile that a window lets any row see
  int32_t num_tiles = 0;   // > 0
  int32_t num_row_tiles = 0;
};

// What one thread block of the decode grid does. Holds its first sequence, so that the block can
// begin with one read.
struct DecodeTask {
  DecodeSeq seq;               // decode_seqs[seq_pos]
  int32_t seq_pos = 0;         // position in decode_seqs
  int32_t unit = 0;            // row_tile * num_kv_heads + kv_head
  int32_t tile = 0;            // of the item, where this block begins
  int32_t num_tiles = 0;       // in all; 0: nothing to do
  int32_t head_first_cta = 0;  // block where the item that is cut by this block's beginning begins
  int32_t head_last_cta = 0;   // block where it ends
  int32_t tail_last_cta = 0;   // block where the item that is cut by this block's end ends
  int32_t reserved[5] = {};
};
static_assert(sizeof(DecodeTask) == 64);

// A tile of query rows of one sequence, for every KV head.
struct PrefillTile {
  int32_t seq_idx = 0;
  int32_t first_row = 0;  // of the sequence's rows in this step
};

struct AttentionPlanHeader {
  int32_t num_decode_ctas = 0;
  int32_t num_decode_seqs = 0;
  int32_t num_prefill_tiles = 0;
  int32_t reserved[13] = {};
};
static_assert(sizeof(AttentionPlanHeader) == 64);

// What does not change from step to step.
struct AttentionPlanShape {
  int32_t max_seqs = 0;
  int32_t max_rows = 0;
  int32_t num_kv_heads = 0;
  int32_t group_size = 0;            // query heads of a KV head
  int32_t decode_grid = 0;           // thread blocks
  int32_t decode_rows_per_tile = 0;  // rows (token, head of the group) that one walk serves
  int32_t prefill_grid = 0;
  int32_t prefill_rows_per_tile = 0;

  int32_t prefill_tokens_per_tile() const {
    return std::max(1, prefill_rows_per_tile / group_size);
  }
  // Every sequence may leave one tile part empty.
  int32_t max_prefill_tiles() const { return max_rows / prefill_tokens_per_tile() + max_seqs; }
  int64_t tasks_offset_bytes() const { return sizeof(AttentionPlanHeader); }
  int64_t seqs_offset_bytes() const {
    return tasks_offset_bytes() + int64_t{decode_grid} * static_cast<int64_t>(sizeof(DecodeTask));
  }
  int64_t prefill_offset_bytes() const {
    return seqs_offset_bytes() + int64_t{max_seqs} * static_cast<int64_t>(sizeof(DecodeSeq));
  }
  int64_t size_bytes() const {
    return prefill_offset_bytes() +
           int64_t{max_prefill_tiles()} * static_cast<int64_t>(sizeof(PrefillTile));
  }
};

struct AttentionPlanInput {
  absl::Span<const int32_t> row_offsets;   // [num_seqs + 1]
  absl::Span<const int32_t> context_lens;  // [num_seqs]
  int32_t window = 0;                      // keys a row sees; 0: all
  // A sequence with more rows than this is prefilled. Absent: as many as one decode tile holds.
  std::optional<int32_t> max_decode_rows;
  // A cut leaves at least this many tiles of an item on either side: a shorter piece costs more to
  // merge than it saves.
  int32_t min_tiles_per_split = 2;
  // No cut goes through an item: its accumulation order depends on its position alone.
  bool whole_items = false;
};

// Parts of a plan in one buffer of shape.size_bytes().
struct AttentionPlanView {
  AttentionPlanHeader* header = nullptr;
  DecodeTask* tasks = nullptr;           // [decode_grid]
  DecodeSeq* seqs = nullptr;             // [max_seqs]
  PrefillTile* prefill_tiles = nullptr;  // [max_prefill_tiles]
};

AttentionPlanView ViewAttentionPlan(const AttentionPlanShape& shape, void* buffer);

// Writes the plan of a step into `buffer` (host memory, shape.size_bytes(), 16-byte aligned). Bytes
// that no kernel will read keep what they were. Pure; O(num_seqs + decode_grid + prefill tiles *
// log).
absl::Status MakeAttentionPlan(const AttentionPlanShape& shape,
                               const AttentionPlanInput& input,
                               void* buffer);

}  // namespace pagoda::kernels::cuda
