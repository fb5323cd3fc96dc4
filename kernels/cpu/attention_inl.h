// Paged attention of one work item. Keys of a partition are gathered from their blocks into panels
// (the layout of weights, with keys as outputs), values into panels with keys as inputs; then both
// products are the register tiles of gemm_inl.h, shared by all rows and by all query heads of the
// group.
//
// What a row gets does not depend on the other rows of its tile: scores are one chain over
// head_dim; the softmax of a partition runs over absolute positions; a key that a row does not see
// has weight zero, which leaves the chain of the values as it is.
#pragma once

#include <type_traits>

#include "kernels/cpu/attention_scratch_inl.h"
#include "kernels/cpu/gather_inl.h"
#include "kernels/cpu/gemm_inl.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd_math.h"

namespace pagoda::kernels::cpu {
namespace {

template <typename Dot>
class Attender {
 public:
  using X = typename Dot::X;
  using Stored = std::conditional_t<Dot::kAccs == 2, float, uint16_t>;

  Attender(const AttentionShape& shape, const AttentionItem& item, void* scratch)
      : shape_(shape),
        item_(item),
        s_(scratch, shape.head_dim, int64_t{item.num_rows} * shape.group) {}

  bool Run() {
    const int64_t num_states = int64_t{item_.num_rows} * shape_.group;
    std::memset(s_.zeros, 0, shape_.head_dim * sizeof(float));
    PrepareQueries(num_states);
    for (int32_t part = item_.partition_begin; part < item_.partition_end; ++part) {
      if (!EnterPartition(part)) return false;
      const int64_t first = FirstStateThatSees(base_);
      if (num_states - first <= Dot::kMaxRows) {
        FewStates<Dot::kMaxRows>(first, static_cast<int>(num_states - first));
        continue;
      }
      GatherPanels();
      for (int64_t i = first; i < num_states; i += kTileRows) {
        Tile<kTileRows>(i,
                        static_cast<int>(num_states - i < kTileRows ? num_states - i : kTileRows));
      }
    }
    if (item_.partial == nullptr) WriteOutputs(num_states);
    return true;
  }

 private:
  // Six rows leave registers for four panels at once, which divides head_dim 64 and a partition
  // evenly.
  static constexpr int kTileRows = Dot::kMaxRows < 6 ? Dot::kMaxRows : 6;
  // Panels of keys that a tile of few states works on at a time, so that they stay in the
  // first-level cache.
  static constexpr int32_t kChunkPanels = 4;
  static constexpr int64_t kPairElements = 2 * kLanes;

  int32_t Position(int64_t state) const {
    return item_.first_position + static_cast<int32_t>(state / shape_.group);
  }
  // The first key of this partition that a row at `position` sees; may be past the partition.
  int32_t FirstKey(int32_t position) const {
    const int32_t first = shape_.window > 0 ? position - shape_.window + 1 : 0;
    return first > base_ ? first : base_;
  }
  int64_t FirstStateThatSees(int32_t key) const {
    return key > item_.first_position ? int64_t{key - item_.first_position} * shape_.group : 0;
  }

  void PrepareQueries(int64_t num_states) {
    for (int64_t i = 0; i < num_states; ++i) {
      const int64_t row = item_.row_begin + i / shape_.group;
      const int64_t head = int64_t{item_.kv_head} * shape_.group + i % shape_.group;
      const float* from = shape_.q + row * shape_.q_stride + head * shape_.head_dim;
      X* to = s_.q + i * s_.q_stride;
      int64_t d = 0;
      for (; d + kLanes <= shape_.head_dim; d += kLanes) Dot::StoreX(Load(from + d), to + d);
      for (; d < shape_.head_dim; ++d) to[d] = Dot::ToX(from[d]);
      // Sum 0: no key yet.
      s_.Tail(item_.partial == nullptr ? s_.states + i * s_.state_floats
                                       : item_.partial + i * item_.partial_stride)[1] = 0.0f;
    }
  }

  // Sets which keys are seen here and where they lie; false where the table leads outside the
  // cache. Around them, up to whole panels, are rows of zeros: what lies beyond may be unused, NaN
  // or not ours, and is not touched.
  bool EnterPartition(int32_t partition) {
    base_ = partition * kPartition;
    const int32_t last = item_.first_position + item_.num_rows - 1;
    begin_ = FirstKey(item_.first_position);
    end_ = last + 1 < base_ + kPartition ? last + 1 : base_ + kPartition;
    panel_begin_ = (begin_ - base_) / kLanes;
    panel_end_ = static_cast<int32_t>(AlignUp(end_ - base_, kLanes)) / kLanes;
    const auto* const cache =
        static_cast<const Stored*>(shape_.cache) + item_.kv_head * shape_.head_stride;
    for (int32_t p = base_ + panel_begin_ * kLanes; p < begin_; ++p) s_.keys[p - base_] = s_.zeros;
    for (int32_t p = begin_; p < end_;) {
      const int32_t in_table = p / shape_.block_size;
      const int64_t block = item_.block_table[in_table];
      if (block < 0 || block >= shape_.num_blocks) return false;
      const int32_t first_slot = p - in_table * shape_.block_size;
      const Stored* row =
          cache + block * shape_.block_stride + int64_t{first_slot} * shape_.head_dim;
      const int32_t left = shape_.block_size - first_slot;
      const int32_t stop = left < end_ - p ? p + left : end_;
      for (; p < stop; ++p, row += shape_.head_dim) s_.keys[p - base_] = row;
    }
    for (int32_t p = end_; p < base_ + panel_end_ * kLanes; ++p) s_.keys[p - base_] = s_.zeros;
    return true;
  }

  const Stored* KeyOf(int32_t key) const { return static_cast<const Stored*>(s_.keys[key]); }
  const Stored* ValueOf(int32_t key) const {
    return s_.keys[key] == s_.zeros ? KeyOf(key) : KeyOf(key) + shape_.v_offset;
  }

  // Sixteen rows of keys, or of values where `panel` counts on past the last panel of keys.
  void PrefetchPanel(int32_t panel) const {
    const bool is_value = panel >= panel_end_;
    if (is_value) panel += panel_begin_ - panel_end_;
    if (panel >= panel_end_) return;
    for (int32_t key = panel * kLanes; key < (panel + 1) * kLanes; ++key)
      PrefetchRow(is_value ? ValueOf(key) : KeyOf(key));
  }
  void PrefetchRow(const Stored* row) const {
    for (int64_t byte = 0; byte < shape_.head_dim * static_cast<int64_t>(sizeof(Stored));
         byte += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(row) + byte);
    }
  }

  PAGODA_INLINE void GatherKeys(int32_t panel, char* out) const {
    const Stored* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = KeyOf(panel * kLanes + i);
    TransposePairs(rows, s_.d_pairs, reinterpret_cast<Stored*>(out));
  }
  // Elements [d_begin, d_begin + d_count) of the panel's values; v_panels `stride_bytes` apart.
  PAGODA_INLINE void GatherValues(
      int32_t panel, int64_t d_begin, int64_t d_count, int64_t stride_bytes, char* out) const {
    for (int i = 0; i < kLanes; i += 2) {
      InterleaveRows(ValueOf(panel * kLanes + i) + d_begin,
                     ValueOf(panel * kLanes + i + 1) + d_begin,
                     d_count,
                     stride_bytes / static_cast<int64_t>(sizeof(Stored)),
                     reinterpret_cast<Stored*>(out + i / 2 * Dot::kPairBytes));
    }
  }

  // ---- Many states: all panels of the partition are gathered once, then tiles of states pass over
  // them.

  void GatherPanels() {
    for (int32_t panel = panel_begin_; panel < panel_end_; ++panel) {
      PrefetchPanel(panel + kChunkPanels);
      GatherKeys(panel, s_.k_panels + panel * s_.k_panel_bytes);
    }
    for (int32_t panel = panel_begin_; panel < panel_end_; ++panel) {
      PrefetchPanel(panel_end_ - panel_begin_ + panel + kChunkPanels);
      GatherValues(panel,
                   0,
                   shape_.head_dim,
                   s_.v_panel_bytes,
                   s_.v_panels + panel * kLanes / 2 * Dot::kPairBytes);
    }
  }

  template <int kRows>
  void Tile(int64_t first_state, int num_rows) {
    if constexpr (kRows > 1) {
      if (num_rows < kRows) return Tile<kRows - 1>(first_state, num_rows);
    }
    const int32_t lo = FirstKey(Position(first_state)) - base_;
    const int32_t last = Position(first_state + kRows - 1);
    const int32_t hi = (last + 1 < end_ ? last + 1 : end_) - base_;
    if (lo >= hi) return;
    const int32_t lo_panel = lo / kLanes;
    const int32_t hi_panel = static_cast<int32_t>(AlignUp(hi, kLanes)) / kLanes;
    Scores<kRows>(first_state, lo_panel, hi_panel, s_.k_panels + lo_panel * s_.k_panel_bytes);
    for (int r = 0; r < kRows; ++r) Softmax(first_state + r, r, lo_panel, hi_panel);
    constexpr int kCols = ValueCols<kRows>();
    int64_t d_panel = 0;
    for (; d_panel + kCols <= s_.d_panels; d_panel += kCols)
      Values<kRows, kCols>(d_panel, lo_panel, hi_panel);
    for (; d_panel < s_.d_panels; ++d_panel) Values<kRows, 1>(d_panel, lo_panel, hi_panel);
    for (int r = 0; r < kRows; ++r) Keep(first_state + r, r);
  }

  template <int kRows>
  static constexpr int ValueCols() {
    return TileCols<Dot>(kRows) > 4 ? 4 : TileCols<Dot>(kRows);
  }

  // Of keys in panels [lo_panel, hi_panel), which lie one after another at k_panels.
  template <int kRows>
  void Scores(int64_t first_state, int32_t lo_panel, int32_t hi_panel, const char* k_panels) {
    constexpr int kCols = TileCols<Dot>(kRows) > 4 ? 4 : TileCols<Dot>(kRows);
    int32_t panel = lo_panel;
    for (; panel + kCols <= hi_panel; panel += kCols, k_panels += kCols * s_.k_panel_bytes) {
      ScoresOf<kRows, kCols>(first_state, panel, k_panels);
    }
    for (; panel < hi_panel; ++panel, k_panels += s_.k_panel_bytes)
      ScoresOf<kRows, 1>(first_state, panel, k_panels);
  }
  template <int kRows, int kCols>
  PAGODA_INLINE void ScoresOf(int64_t first_state, int32_t panel, const char* k_panels) {
    const char* panels[kCols];
    for (int c = 0; c < kCols; ++c) panels[c] = k_panels + c * s_.k_panel_bytes;
    VecF acc[kRows][kCols][Dot::kAccs] = {};
    MultiplyTile<Dot, kRows, kCols, false>(
        s_.q + first_state * s_.q_stride, s_.q_stride, panels, s_.d_pairs, acc);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) {
        Store(Dot::Finish(acc[r][c]), s_.scores + r * kPartition + (panel + c) * kLanes);
      }
    }
  }

  template <int kRows, int kCols>
  PAGODA_INLINE void Values(int64_t d_panel, int32_t lo_panel, int32_t hi_panel) {
    const char* panels[kCols];
    for (int c = 0; c < kCols; ++c) {
      panels[c] = s_.v_panels + (d_panel + c) * s_.v_panel_bytes +
                  int64_t{lo_panel} * kLanes / 2 * Dot::kPairBytes;
    }
    VecF acc[kRows][kCols][Dot::kAccs] = {};
    MultiplyTile<Dot, kRows, kCols, false>(s_.weights + lo_panel * kLanes,
                                           kPartition,
                                           panels,
                                           int64_t{hi_panel - lo_panel} * kLanes / 2,
                                           acc);
    StoreValues<kRows, kCols>(d_panel, acc);
  }
  template <int kRows, int kCols>
  PAGODA_INLINE void StoreValues(int64_t d_panel, const VecF (&acc)[kRows][kCols][Dot::kAccs]) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) {
        Store(Dot::Finish(acc[r][c]), s_.fresh + r * s_.state_floats + (d_panel + c) * kLanes);
      }
    }
  }

  // ---- Few states (decoding): gathering costs as much as using, so that each chunk is used while
  // it is near.

  template <int kRows>
  void FewStates(int64_t first_state, int num_rows) {
    if constexpr (kRows > 1) {
      if (num_rows < kRows) return FewStates<kRows - 1>(first_state, num_rows);
    }
    for (int32_t panel = panel_begin_; panel < panel_end_; panel += kChunkPanels) {
      const int32_t end = panel + kChunkPanels < panel_end_ ? panel + kChunkPanels : panel_end_;
      for (int32_t p = panel; p < end; ++p) {
        PrefetchPanel(p + kChunkPanels);
        GatherKeys(p, s_.k_panels + (p - panel) * s_.k_panel_bytes);
      }
      Scores<kRows>(first_state, panel, end, s_.k_panels);
    }
    for (int r = 0; r < kRows; ++r) Softmax(first_state + r, r, panel_begin_, panel_end_);
    constexpr int kCols = ValueCols<kRows>();
    int64_t d_panel = 0;
    for (; d_panel + kCols <= s_.d_panels; d_panel += kCols) ChunkedValues<kRows, kCols>(d_panel);
    for (; d_panel < s_.d_panels; ++d_panel) ChunkedValues<kRows, 1>(d_panel);
    for (int r = 0; r < kRows; ++r) Keep(first_state + r, r);
  }

  template <int kRows, int kCols>
  PAGODA_INLINE void ChunkedValues(int64_t d_panel) {
    constexpr int64_t kStrideBytes = kChunkPanels * kLanes / 2 * Dot::kPairBytes;
    const int64_t d_begin = d_panel * kLanes;
    const int64_t d_left = shape_.head_dim - d_begin;
    const char* panels[kCols];
    for (int c = 0; c < kCols; ++c) panels[c] = s_.v_panels + c * kStrideBytes;
    VecF acc[kRows][kCols][Dot::kAccs] = {};
    for (int32_t panel = panel_begin_; panel < panel_end_; panel += kChunkPanels) {
      const int32_t end = panel + kChunkPanels < panel_end_ ? panel + kChunkPanels : panel_end_;
      for (int32_t p = panel; p < end; ++p) {
        if (d_panel == 0) PrefetchPanel(panel_end_ - panel_begin_ + p + kChunkPanels);
        GatherValues(p,
                     d_begin,
                     d_left < kCols * kLanes ? d_left : kCols * kLanes,
                     kStrideBytes,
                     s_.v_panels + (p - panel) * kLanes / 2 * Dot::kPairBytes);
      }
      MultiplyTile<Dot, kRows, kCols, false>(
          s_.weights + panel * kLanes, kPartition, panels, int64_t{end - panel} * kLanes / 2, acc);
    }
    StoreValues<kRows, kCols>(d_panel, acc);
  }

  // ---- One state.

  // Scores of one row become weights, with their maximum and sum. Exponents are to base 2: the
  // factor is part of the scale. Panels [lo_panel, hi_panel) are the tile's; the row's own keys
  // [lo, hi) may begin later or end earlier.
  void Softmax(int64_t state, int r, int32_t lo_panel, int32_t hi_panel) {
    constexpr float kLog2E = 1.44269504f;
    const int32_t position = Position(state);
    const int32_t lo = FirstKey(position) - base_;
    const int32_t hi = (position + 1 < end_ ? position + 1 : end_) - base_;
    float* scores = s_.scores + r * kPartition;
    X* weights = s_.weights + r * kPartition;
    const float slope =
        shape_.alibi_slopes == nullptr
            ? 0.0f
            : shape_.alibi_slopes[int64_t{item_.kv_head} * shape_.group + state % shape_.group];
    const bool is_plain = shape_.soft_cap == 0.0f && slope == 0.0f;
    const VecF scale = Set1(is_plain ? shape_.score_scale * kLog2E : shape_.score_scale);
    const VecF minus_infinity = Set1(-__builtin_inff());
    const auto sees_all = [=](int32_t panel) {
      return panel * kLanes >= lo && (panel + 1) * kLanes <= hi;
    };
    const auto sees = [=](int32_t panel) {
      const VecI key = LaneIndex() + panel * kLanes;
      return (key >= lo) & (key < hi);
    };
    VecF max = minus_infinity;
    for (int32_t panel = lo_panel; panel < hi_panel; ++panel) {
      VecF s = Load(scores + panel * kLanes) * scale;
      if (!is_plain) {
        if (shape_.soft_cap > 0.0f) s = Set1(shape_.soft_cap) * Tanh(s / Set1(shape_.soft_cap));
        const VecI distance = LaneIndex() + (panel * kLanes + base_ - position);
        s = Fma(Set1(slope), ToFloat(distance), s) * Set1(kLog2E);
      }
      if (!sees_all(panel)) s = Select(sees(panel), s, minus_infinity);
      Store(s, scores + panel * kLanes);
      max = Max(max, s);
    }
    const float m = ReduceMax(max);
    VecF sum = Zero();
    for (int32_t panel = lo_panel; panel < hi_panel; ++panel) {
      VecF w = Exp2(Load(scores + panel * kLanes) - Set1(m));
      if (!sees_all(panel)) w = Select(sees(panel), w, Zero());
      // The sum is that of the weights as the values see them.
      sum = sum + Dot::StoreRounded(w, weights + panel * kLanes);
    }
    float* tail = s_.Tail(s_.fresh + r * s_.state_floats);
    tail[0] = m;
    tail[1] = ReduceAdd(sum);
  }

  // A row whose window begins after this partition has nothing here.
  void Keep(int64_t state, int r) {
    const float* fresh = s_.fresh + r * s_.state_floats;
    if (FirstKey(Position(state)) >= end_) return;
    if (item_.partial == nullptr) {
      MergeState(fresh, s_.d_panels, s_.states + state * s_.state_floats);
      return;
    }
    float* out = item_.partial + state * item_.partial_stride;
    for (int64_t i = 0; i <= s_.d_panels; ++i) Store(Load(fresh + i * kLanes), out + i * kLanes);
  }

  void WriteOutputs(int64_t num_states) {
    for (int64_t i = 0; i < num_states; ++i) {
      const int64_t row = item_.row_begin + i / shape_.group;
      const int64_t head = int64_t{item_.kv_head} * shape_.group + i % shape_.group;
      WriteState(s_.states + i * s_.state_floats,
                 shape_.head_dim,
                 shape_.v_scale,
                 shape_.out + row * shape_.out_stride + head * shape_.head_dim);
    }
  }

  const AttentionShape& shape_;
  const AttentionItem& item_;
  AttentionScratch<Dot> s_;
  // Of the partition at hand: its first position; first and last + 1 key that any row sees; panels
  // that hold those.
  int32_t base_ = 0;
  int32_t begin_ = 0;
  int32_t end_ = 0;
  int32_t panel_begin_ = 0;
  int32_t panel_end_ = 0;
};

bool Attend(const AttentionShape& shape, const AttentionItem& item, void* scratch) {
  if (shape.cache_element == Element::kBFloat16)
    return Attender<DotBf16>(shape, item, scratch).Run();
  return Attender<DotF32>(shape, item, scratch).Run();
}

size_t AttentionScratchBytes(const AttentionShape& shape, int64_t max_rows) {
  const int64_t num_states = max_rows * shape.group;
  return shape.cache_element == Element::kBFloat16
             ? AttentionScratch<DotBf16>(nullptr, shape.head_dim, num_states).total_bytes
             : AttentionScratch<DotF32>(nullptr, shape.head_dim, num_states).total_bytes;
}

void MergePartials(float* partials,
                   int64_t partial_stride,
                   int32_t num_partials,
                   int32_t head_dim,
                   float v_scale,
                   float* out) {
  const int64_t d_panels = (head_dim + kLanes - 1) / kLanes;
  for (int32_t i = 1; i < num_partials; ++i)
    MergeState(partials + i * partial_stride, d_panels, partials);
  WriteState(partials, head_dim, v_scale, out);
}

}  // namespace
}  // namespace pagoda::kernels::cpu
