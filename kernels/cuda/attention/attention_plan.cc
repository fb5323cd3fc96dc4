#include "kernels/cuda/attention/attention_plan.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::kernels::cuda {
namespace {

// What beginning and ending an item costs a thread block, in tiles: reading q, merging its warps,
// writing the result.
constexpr int64_t kItemCostTiles = 1;

int32_t CeilDiv(int32_t a, int32_t b) { return (a + b - 1) / b; }

// First key that any of the last `rows` rows of a context sees.
int32_t FirstVisibleToken(int32_t context_len, int32_t rows, int32_t window) {
  return window > 0 ? std::max(0, context_len - rows - window + 1) : 0;
}

// A place on the line of items where one thread block ends and the next begins; tile < the item's
// num_tiles, or the end of the line (seq_pos == number of sequences).
struct Cut {
  int32_t seq_pos = 0;
  int32_t unit = 0;
  int32_t tile = 0;

  bool SameItem(const Cut& other) const { return seq_pos == other.seq_pos && unit == other.unit; }
  bool operator==(const Cut& other) const { return SameItem(other) && tile == other.tile; }
};

// The line of items, and where to cut it.
class DecodeLine {
 public:
  DecodeLine(absl::Span<const DecodeSeq> seqs, int32_t num_kv_heads)
      : seqs_(seqs), num_kv_heads_(num_kv_heads) {
    cost_before_.reserve(seqs.size() + 1);
    tiles_before_.reserve(seqs.size() + 1);
    int64_t cost = 0;
    int64_t tiles = 0;
    for (const DecodeSeq& seq : seqs) {
      cost_before_.push_back(cost);
      tiles_before_.push_back(tiles);
      cost += Units(seq) * (kItemCostTiles + seq.num_tiles);
      tiles += Units(seq) * seq.num_tiles;
    }
    cost_before_.push_back(cost);
    tiles_before_.push_back(tiles);
  }

  int64_t cost() const { return cost_before_.back(); }
  int64_t tiles() const { return tiles_before_.back(); }

  int64_t TilesBefore(const Cut& cut) const {
    if (cut.seq_pos == static_cast<int32_t>(seqs_.size())) return tiles();
    return tiles_before_[cut.seq_pos] + int64_t{cut.unit} * seqs_[cut.seq_pos].num_tiles + cut.tile;
  }

  // The cut nearest to `cost` units of work, kept `min_tiles` away from both ends of an item unless
  // it is at one. Monotone in `cost`.
  Cut At(int64_t cost, int32_t min_tiles) const {
    const auto after = std::upper_bound(cost_before_.begin(), cost_before_.end(), cost);
    const int32_t seq_pos = static_cast<int32_t>(after - cost_before_.begin()) - 1;
    if (seq_pos >= static_cast<int32_t>(seqs_.size())) return End();
    const DecodeSeq& seq = seqs_[seq_pos];
    const int64_t within = cost - cost_before_[seq_pos];
    const int64_t item_cost = kItemCostTiles + seq.num_tiles;
    const int64_t unit = within / item_cost;
    const int64_t tile = std::max<int64_t>(0, within % item_cost - kItemCostTiles);
    Cut cut{seq_pos, static_cast<int32_t>(unit), static_cast<int32_t>(tile)};
    if (tile >= min_tiles && seq.num_tiles - tile >= min_tiles) return cut;
    cut.tile = 0;
    if (2 * tile < seq.num_tiles) return cut;
    if (++cut.unit < Units(seq)) return cut;
    return Cut{seq_pos + 1, 0, 0};
  }

  Cut End() const { return Cut{static_cast<int32_t>(seqs_.size()), 0, 0}; }

 private:
  int64_t Units(const DecodeSeq& seq) const { return int64_t{seq.num_row_tiles} * num_kv_heads_; }

  absl::Span<const DecodeSeq> seqs_;
  int32_t num_kv_heads_;
  std::vector<int64_t> cost_before_;
  std::vector<int64_t> tiles_before_;
};

// Cuts of the line, first and last included, all distinct.
std::vector<Cut> CutLine(const DecodeLine& line,
                         const AttentionPlanShape& shape,
                         const AttentionPlanInput& input) {
  const int32_t min_tiles = input.whole_items ? INT32_MAX : std::max(1, input.min_tiles_per_split);
  const int64_t wanted =
      input.whole_items ? shape.decode_grid : std::max<int64_t>(1, line.tiles() / min_tiles);
  const int64_t num_parts = std::min<int64_t>(shape.decode_grid, wanted);
  std::vector<Cut> cuts = {Cut{}};
  for (int64_t part = 1; part < num_parts; ++part) {
    const Cut cut = line.At(line.cost() * part / num_parts, min_tiles);
    if (!(cut == cuts.back())) cuts.push_back(cut);
  }
  if (!(cuts.back() == line.End())) cuts.push_back(line.End());
  return cuts;
}

void WriteTasks(absl::Span<const Cut> cuts,
                const DecodeLine& line,
                absl::Span<const DecodeSeq> seqs,
                DecodeTask* tasks) {
  const int32_t num_ctas = static_cast<int32_t>(cuts.size()) - 1;
  // Block in which the item that cuts[cta] goes through begins.
  int32_t item_first_cta = 0;
  for (int32_t cta = 0; cta < num_ctas; ++cta) {
    const Cut& begin = cuts[cta];
    if (cta > 0 && !begin.SameItem(cuts[cta - 1])) item_first_cta = cta - 1;
    DecodeTask task;
    task.seq = seqs[begin.seq_pos];
    task.seq_pos = begin.seq_pos;
    task.unit = begin.unit;
    task.tile = begin.tile;
    task.num_tiles =
        static_cast<int32_t>(line.TilesBefore(cuts[cta + 1]) - line.TilesBefore(begin));
    task.head_first_cta = begin.tile > 0 ? item_first_cta : cta;
    if (begin.tile == 0) item_first_cta = cta;
    tasks[cta] = task;
  }
  // Block in which the item that cuts[cta + 1] goes through ends.
  int32_t item_last_cta = num_ctas - 1;
  for (int32_t cta = num_ctas - 1; cta >= 0; --cta) {
    const Cut& begin = cuts[cta];
    const Cut& end = cuts[cta + 1];
    tasks[cta].tail_last_cta = end.tile > 0 ? item_last_cta : cta;
    tasks[cta].head_last_cta = end.tile > 0 && end.SameItem(begin) ? item_last_cta : cta;
    item_last_cta = tasks[cta].head_last_cta;
  }
}

absl::Status CheckInput(const AttentionPlanShape& shape, const AttentionPlanInput& input) {
  const int64_t num_seqs = static_cast<int64_t>(input.context_lens.size());
  if (num_seqs > shape.max_seqs || static_cast<int64_t>(input.row_offsets.size()) != num_seqs + 1) {
    return absl::InvalidArgumentError(absl::StrCat("attention plan: ",
                                                   num_seqs,
                                                   " sequences with ",
                                                   input.row_offsets.size(),
                                                   " row offsets; expected at most ",
                                                   shape.max_seqs,
                                                   " sequences and one offset more"));
  }
  if (input.row_offsets.back() > shape.max_rows) {
    return absl::InvalidArgumentError(absl::StrCat("attention plan: ",
                                                   input.row_offsets.back(),
                                                   " rows, but the plan was sized for ",
                                                   shape.max_rows));
  }
  for (int64_t i = 0; i < num_seqs; ++i) {
    const int32_t rows = input.row_offsets[i + 1] - input.row_offsets[i];
    if (rows < 0 || rows > input.context_lens[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("attention plan: sequence ",
                       i,
                       " has ",
                       rows,
                       " rows and a context of ",
                       input.context_lens[i],
                       " tokens; rows are the context's last tokens"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const AttentionPlanShape& shape) {
  if (shape.max_seqs <= 0 || shape.max_rows <= 0 || shape.num_kv_heads <= 0 ||
      shape.group_size <= 0 || shape.decode_grid <= 0 || shape.decode_rows_per_tile <= 0) {
    return absl::InvalidArgumentError("attention plan: every size of its shape must be positive");
  }
  if (shape.prefill_rows_per_tile < shape.group_size) {
    return absl::UnimplementedError(absl::StrCat("attention plan: ",
                                                 shape.group_size,
                                                 " query heads a KV head; at most ",
                                                 shape.prefill_rows_per_tile,
                                                 " are supported"));
  }
  return absl::OkStatus();
}

// Keys that the tile's last row sees, in KV tiles: what the tile costs.
int32_t PrefillCost(const AttentionPlanInput& input, const PrefillTile& tile, int32_t tokens) {
  const int32_t rows = input.row_offsets[tile.seq_idx + 1] - input.row_offsets[tile.seq_idx];
  const int32_t last = std::min(tile.first_row + tokens, rows);
  const int32_t end = input.context_lens[tile.seq_idx] - rows + last;
  const int32_t first = FirstVisibleToken(end, last - tile.first_row, input.window);
  return CeilDiv(end, kKvTileTokens) - first / kKvTileTokens;
}

}  // namespace

AttentionPlanView ViewAttentionPlan(const AttentionPlanShape& shape, void* buffer) {
  char* base = static_cast<char*>(buffer);
  return {
      .header = reinterpret_cast<AttentionPlanHeader*>(base),
      .tasks = reinterpret_cast<DecodeTask*>(base + shape.tasks_offset_bytes()),
      .seqs = reinterpret_cast<DecodeSeq*>(base + shape.seqs_offset_bytes()),
      .prefill_tiles = reinterpret_cast<PrefillTile*>(base + shape.prefill_offset_bytes()),
  };
}

absl::Status MakeAttentionPlan(const AttentionPlanShape& shape,
                               const AttentionPlanInput& input,
                               void* buffer) {
  PAGODA_RETURN_IF_ERROR(CheckShape(shape));
  PAGODA_RETURN_IF_ERROR(CheckInput(shape, input));
  const AttentionPlanView plan = ViewAttentionPlan(shape, buffer);
  const int32_t tokens_per_tile = shape.prefill_tokens_per_tile();
  const int32_t max_decode_rows =
      input.max_decode_rows.value_or(std::max(1, shape.decode_rows_per_tile / shape.group_size));

  int32_t num_decode_seqs = 0;
  int32_t num_prefill_tiles = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(input.context_lens.size()); ++i) {
    const int32_t rows = input.row_offsets[i + 1] - input.row_offsets[i];
    if (rows == 0) continue;
    if (rows <= max_decode_rows) {
      const int32_t context_len = input.context_lens[i];
      DecodeSeq& seq = plan.seqs[num_decode_seqs++];
      seq.seq_idx = i;
      seq.first_tile = FirstVisibleToken(context_len, rows, input.window) / kKvTileTokens;
      seq.num_tiles = CeilDiv(context_len, kKvTileTokens) - seq.first_tile;
      seq.num_row_tiles = CeilDiv(rows * shape.group_size, shape.decode_rows_per_tile);
    } else {
      for (int32_t row = 0; row < rows; row += tokens_per_tile) {
        plan.prefill_tiles[num_prefill_tiles++] = {.seq_idx = i, .first_row = row};
      }
    }
  }

  // Longest first; equal ones in the order of the batch, so that a plan depends on its input alone.
  std::stable_sort(plan.prefill_tiles,
                   plan.prefill_tiles + num_prefill_tiles,
                   [&](const PrefillTile& a, const PrefillTile& b) {
                     return PrefillCost(input, a, tokens_per_tile) >
                            PrefillCost(input, b, tokens_per_tile);
                   });

  int32_t num_decode_ctas = 0;
  if (num_decode_seqs > 0) {
    const absl::Span<const DecodeSeq> seqs(plan.seqs, num_decode_seqs);
    const DecodeLine line(seqs, shape.num_kv_heads);
    const std::vector<Cut> cuts = CutLine(line, shape, input);
    WriteTasks(cuts, line, seqs, plan.tasks);
    num_decode_ctas = static_cast<int32_t>(cuts.size()) - 1;
  }
  for (int32_t cta = num_decode_ctas; cta < shape.decode_grid; ++cta)
    plan.tasks[cta] = DecodeTask{};
  *plan.header = AttentionPlanHeader{.num_decode_ctas = num_decode_ctas,
                                     .num_decode_seqs = num_decode_seqs,
                                     .num_prefill_tiles = num_prefill_tiles};
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cuda
