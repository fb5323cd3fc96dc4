#include "engine/model/batch_inputs.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

constexpr size_t kAlignmentBytes = 256;
constexpr int32_t kNoRow = -1;

// Hands out consecutive aligned arrays; with a null base it only counts.
class Layout {
 public:
  explicit Layout(char* base) : base_(base) {}

  int32_t* Array(size_t count) {
    int32_t* const array =
        base_ == nullptr ? nullptr : reinterpret_cast<int32_t*>(base_ + size_bytes_);
    size_bytes_ +=
        (count * sizeof(int32_t) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    return array;
  }
  size_t size_bytes() const { return size_bytes_; }

 private:
  char* base_;
  size_t size_bytes_ = 0;
};

}  // namespace

size_t BatchInputs::Lay(const StepLimits& limits, bool on_device, char* base, ArraySet* set) {
  const size_t seqs = static_cast<size_t>(limits.num_slots);
  // The order matters to CopyArrays.
  const auto lay_step = [&](int32_t max_rows, Arrays* arrays) {
    const size_t rows = static_cast<size_t>(max_rows);
    Layout layout(base);
    arrays->row_offsets = layout.Array(seqs + 1);
    arrays->context_lens = layout.Array(seqs);
    arrays->host_tokens = layout.Array(rows);
    arrays->source_slots = layout.Array(rows);
    arrays->positions = layout.Array(rows);
    arrays->kv_slots = layout.Array(rows);
    return layout;
  };
  lay_step(std::min(limits.num_slots, limits.max_step_tokens), &set->small);
  Layout layout = lay_step(limits.max_step_tokens, &set->large);
  Arrays& large = set->large;
  // At most whole tables change.
  const size_t table_size = seqs * static_cast<size_t>(limits.max_blocks_per_sequence());
  large.table_changes = layout.Array(2 * table_size);
  large.block_copies = layout.Array(2 * seqs);
  if (on_device) {
    large.block_tables = layout.Array(table_size);
    large.tokens = layout.Array(static_cast<size_t>(limits.max_step_tokens));
    large.last_tokens = layout.Array(seqs);
  }
  set->small.table_changes = large.table_changes;
  set->small.block_copies = large.block_copies;
  set->small.block_tables = large.block_tables;
  set->small.tokens = large.tokens;
  set->small.last_tokens = large.last_tokens;
  return layout.size_bytes();
}

absl::StatusOr<BatchInputs> BatchInputs::Allocate(kernels::Backend& backend,
                                                  const StepLimits& limits,
                                                  int num_sets) {
  BatchInputs inputs;
  inputs.limits_ = limits;
  const size_t device_bytes = Lay(limits, /*on_device=*/true, nullptr, &inputs.device_set_);
  PAGODA_ASSIGN_OR_RETURN(inputs.device_memory_, backend.Allocate(device_bytes, "batch inputs"));
  Lay(limits, /*on_device=*/true, inputs.device_memory_.as<char>(), &inputs.device_set_);
  inputs.device_ = inputs.device_set_.small;
  ArraySet counted;
  const size_t host_bytes = Lay(limits, /*on_device=*/false, nullptr, &counted);
  for (int i = 0; i < num_sets; ++i) {
    PAGODA_ASSIGN_OR_RETURN(kernels::Buffer memory,
                            backend.AllocateHost(host_bytes, "staging of batch inputs"));
    Lay(limits, /*on_device=*/false, memory.as<char>(), &inputs.host_sets_.emplace_back());
    inputs.host_memory_.push_back(std::move(memory));
  }
  const size_t num_slots = static_cast<size_t>(limits.num_slots);
  inputs.table_rows_.resize(num_slots);
  inputs.table_row_of_slot_.assign(num_slots, kNoRow);
  return inputs;
}

// A sequence stays where its block table is; the rest fill the gaps in plan order.
void BatchInputs::ChooseOrder(absl::Span<const StepRow> rows, const SlotTable& slots) {
  const int32_t num_seqs = static_cast<int32_t>(rows.size());
  row_at_seq_.assign(rows.size(), kNoRow);
  const auto place_of = [&](const StepRow& row) {
    const int32_t place = table_row_of_slot_[static_cast<size_t>(row.slot)];
    if (place == kNoRow || place >= num_seqs) return kNoRow;
    const TableRow& held = table_rows_[static_cast<size_t>(place)];
    const bool is_its_own =
        held.slot == row.slot && held.generation == slots.slot(row.slot).generation;
    return is_its_own ? place : kNoRow;
  };
  for (int32_t i = 0; i < num_seqs; ++i) {
    const int32_t place = place_of(rows[static_cast<size_t>(i)]);
    if (place != kNoRow) row_at_seq_[static_cast<size_t>(place)] = i;
  }
  size_t gap = 0;
  for (int32_t i = 0; i < num_seqs; ++i) {
    if (place_of(rows[static_cast<size_t>(i)]) != kNoRow) continue;
    while (row_at_seq_[gap] != kNoRow) ++gap;
    row_at_seq_[gap] = i;
  }
}

absl::Status BatchInputs::FillSequence(const StepRow& row, const SlotState& slot, int32_t seq_idx) {
  const int32_t first = host_.row_offsets[seq_idx];
  const int32_t num_known = static_cast<int32_t>(slot.tokens.size());
  // The device keeps one token a slot, the last that it sampled.
  const int32_t last_sampled = slot.num_tokens - 1 - (row.samples ? 1 : 0);
  // All before a draft is known.
  const int32_t first_draft = row.end_position() - row.num_drafts;
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    const int32_t position = row.first_position + i;
    const int32_t block = slot.blocks[static_cast<size_t>(position / limits_.block_size)];
    const bool is_draft = position >= first_draft;
    const bool is_known = position < num_known || is_draft;
    if (!is_known && position != last_sampled) {
      return absl::InternalError(absl::StrCat("slot ",
                                              row.slot,
                                              " computes position ",
                                              position,
                                              "; the tokens before ",
                                              num_known,
                                              " and the last sampled one are known"));
    }
    host_.positions[first + i] = position;
    host_.kv_slots[first + i] = block * limits_.block_size + position % limits_.block_size;
    int32_t token = 0;
    if (is_draft) {
      token = slot.draft[static_cast<size_t>(position - first_draft)];
    } else if (is_known) {
      token = slot.tokens[static_cast<size_t>(position)];
    }
    host_.host_tokens[first + i] = token;
    host_.source_slots[first + i] = is_known ? -1 : row.slot;
  }
  host_.row_offsets[seq_idx + 1] = first + row.num_tokens;
  host_.context_lens[seq_idx] = row.end_position();
  return absl::OkStatus();
}

void BatchInputs::NoteNewBlocks(const StepRow& row, const SlotState& slot, size_t seq_idx) {
  TableRow& held = table_rows_[seq_idx];
  if (held.slot != row.slot || held.generation != slot.generation) {
    held = {.slot = row.slot, .generation = slot.generation, .num_blocks = 0};
  }
  table_row_of_slot_[static_cast<size_t>(row.slot)] = static_cast<int32_t>(seq_idx);
  const size_t first_place = seq_idx * static_cast<size_t>(limits_.max_blocks_per_sequence());
  for (size_t i = held.num_blocks; i < slot.blocks.size(); ++i) {
    int32_t* const pair = host_.table_changes + 2 * num_table_changes_++;
    pair[0] = static_cast<int32_t>(first_place + i);
    pair[1] = slot.blocks[i];
  }
  held.num_blocks = slot.blocks.size();
}

absl::Status BatchInputs::UpdateTables(kernels::Backend& backend) const {
  if (num_table_changes_ == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(backend.CopyToDevice(
      device_.table_changes, host_.table_changes, 2 * num_table_changes_ * sizeof(int32_t)));
  return backend.Scatter(
      {.pairs = device_.table_changes,
       .to = device_.block_tables,
       .count = static_cast<int64_t>(num_table_changes_),
       .size = static_cast<int64_t>(table_rows_.size()) * limits_.max_blocks_per_sequence()});
}

// Rows of no sequence, and sequences without rows.
void BatchInputs::Pad(size_t num_seqs, int32_t padded_rows) {
  const int32_t num_rows = host_.row_offsets[num_seqs];
  for (int32_t row = num_rows; row < padded_rows; ++row) {
    host_.host_tokens[row] = 0;
    host_.source_slots[row] = -1;
    host_.positions[row] = 0;
    host_.kv_slots[row] = -1;
  }
  const int32_t padded_seqs = std::min(padded_rows, limits_.num_slots);
  for (int32_t seq = static_cast<int32_t>(num_seqs); seq < padded_seqs; ++seq) {
    host_.row_offsets[seq + 1] = num_rows;
    host_.context_lens[seq] = 0;
  }
}

absl::Status BatchInputs::CopyArrays(kernels::Backend& backend) const {
  const int32_t* const end = host_.kv_slots + batch_.num_rows;
  return backend.CopyToDevice(device_.row_offsets,
                              host_.row_offsets,
                              static_cast<size_t>(end - host_.row_offsets) * sizeof(int32_t));
}

absl::Status BatchInputs::Build(kernels::Backend& backend,
                                absl::Span<const StepRow> rows,
                                const SlotTable& slots,
                                int set_idx,
                                int32_t padded_rows) {
  PAGODA_CHECK(!rows.empty() && rows.size() <= table_rows_.size());
  const int32_t num_rows =
      std::accumulate(rows.begin(), rows.end(), 0, [](int32_t sum, const StepRow& row) {
        return sum + row.num_tokens;
      });
  PAGODA_CHECK(padded_rows == 0 ||
               (padded_rows >= num_rows && padded_rows <= limits_.max_step_tokens));
  const int32_t all_rows = std::max(num_rows, padded_rows);
  host_ = host_sets_[static_cast<size_t>(set_idx)].For(limits_, all_rows);
  device_ = device_set_.For(limits_, all_rows);
  num_table_changes_ = 0;
  ChooseOrder(rows, slots);
  first_batch_rows_.resize(rows.size());
  host_.row_offsets[0] = 0;
  for (size_t seq_idx = 0; seq_idx < rows.size(); ++seq_idx) {
    const size_t row_idx = static_cast<size_t>(row_at_seq_[seq_idx]);
    const StepRow& row = rows[row_idx];
    first_batch_rows_[row_idx] = host_.row_offsets[seq_idx];
    PAGODA_RETURN_IF_ERROR(FillSequence(row, slots.slot(row.slot), static_cast<int32_t>(seq_idx)));
    NoteNewBlocks(row, slots.slot(row.slot), seq_idx);
  }
  Pad(rows.size(), padded_rows);
  batch_ = {.num_seqs = std::max(static_cast<int32_t>(rows.size()),
                                 std::min(padded_rows, limits_.num_slots)),
            .num_rows = all_rows,
            .row_offsets = device_.row_offsets,
            .context_lens = device_.context_lens,
            .block_tables = device_.block_tables,
            .block_table_stride = limits_.max_blocks_per_sequence(),
            .positions = device_.positions,
            .kv_slots = device_.kv_slots,
            .host_row_offsets = host_.row_offsets,
            .host_context_lens = host_.context_lens};
  PAGODA_RETURN_IF_ERROR(UpdateTables(backend));
  return CopyArrays(backend);
}

absl::StatusOr<const int32_t*> BatchInputs::SendBlockCopies(
    kernels::Backend& backend, absl::Span<const BlockCopy> copies) const {
  PAGODA_CHECK(copies.size() <= table_rows_.size());
  int32_t* out = host_.block_copies;
  for (const BlockCopy& copy : copies) {
    *out++ = copy.from;
    *out++ = copy.to;
  }
  PAGODA_RETURN_IF_ERROR(backend.CopyToDevice(
      device_.block_copies, host_.block_copies, copies.size() * sizeof(BlockCopy)));
  return device_.block_copies;
}

absl::Status BatchInputs::ResolveTokens(kernels::Backend& backend) const {
  return backend.ResolveTokens({.host_tokens = device_.host_tokens,
                                .source_slots = device_.source_slots,
                                .last_tokens = device_.last_tokens,
                                .tokens = device_.tokens,
                                .rows = batch_.num_rows,
                                .num_slots = limits_.num_slots});
}

}  // namespace pagoda::engine
