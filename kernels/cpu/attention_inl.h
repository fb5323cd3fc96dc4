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

#include "kernels/cpu/gather_inl.h"
#include "kernels/cpu/gemm_inl.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd_math.h"

namespace pagoda::kernels::cpu {
namespace {

constexpr int64_t AlignUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Scratch of one thread, laid out in one allocation.
template <typename Dot>
struct AttentionScratch {
  using X = typename Dot::X;
  char* k_panels;  // [kPartition / 16][d_pairs][16][2]
  char* v_panels;  // [d_panels][kPartition / 2][16][2]
  float* scores;   // [kMaxRows][kPartition]
  X* weights;      // [kMaxRows][kPartition]
  X* q;            // [rows * group][q_stride]
  float* states;   // [rows * group][AttentionStateFloats]
  float* fresh;    // [kMaxRows][AttentionStateFloats], of one partition
  const void**
      keys;     // [kPartition], where each key of the partition lies; its value is v_offset on
  char* zeros;  // [head_dim], stands for keys that are not there
  int64_t q_stride;
  int64_t d_pairs;
  int64_t d_panels;
  int64_t state_floats;
  int64_t total_bytes;

  AttentionScratch(void* base, int32_t head_dim, int64_t num_states) {
    d_pairs = (head_dim + 1) / 2;
    d_panels = (head_dim + kLanes - 1) / kLanes;
    q_stride = AlignUp(2 * d_pairs, 64 / static_cast<int64_t>(sizeof(X))) +
               64 / static_cast<int64_t>(sizeof(X));
    state_floats = AttentionStateFloats(head_dim);
    char* p = static_cast<char*>(base);
    const auto take = [&p](int64_t bytes) {
      char* at = p;
      p += AlignUp(bytes, 64);
      return at;
    };
    k_panels = take(kPartition / kLanes * d_pairs * Dot::kPairBytes);
    v_panels = take(d_panels * (kPartition / 2) * Dot::kPairBytes);
    scores = reinterpret_cast<float*>(take(Dot::kMaxRows * kPartition * 4));
    weights =
        reinterpret_cast<X*>(take(Dot::kMaxRows * kPartition * static_cast<int64_t>(sizeof(X))));
    q = reinterpret_cast<X*>(take(num_states * q_stride * static_cast<int64_t>(sizeof(X))));
    states = reinterpret_cast<float*>(take(num_states * state_floats * 4));
    fresh = reinterpret_cast<float*>(take(Dot::kMaxRows * state_floats * 4));
    keys = reinterpret_cast<const void**>(take(kPartition * static_cast<int64_t>(sizeof(void*))));
    zeros = take(head_dim * 4);
    total_bytes = p - static_cast<char*>(base);
  }
};

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
    PrepareQueries();
    for (int32_t part = item_.partition_begin; part < item_.partition_end; ++part) {
      base_ = part * kPartition;
      const int32_t last = item_.first_position + item_.num_rows - 1;
      begin_ = FirstKey(item_.first_position);
      end_ = last + 1 < base_ + kPartition ? last + 1 : base_ + kPartition;
      if (!GatherPanels()) return false;
      int64_t i = FirstStateThatSees(base_);
      for (; i < num_states; i += Dot::kMaxRows) {
        const int64_t count = num_states - i < Dot::kMaxRows ? num_states - i : Dot::kMaxRows;
        Tile<Dot::kMaxRows>(i, static_cast<int>(count));
      }
    }
    if (item_.partial == nullptr) WriteOutputs(num_states);
    return true;
  }

 private:
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

  void PrepareQueries() {
    const int64_t num_states = int64_t{item_.num_rows} * shape_.group;
    for (int64_t i = 0; i < num_states; ++i) {
      const int64_t row = item_.row_begin + i / shape_.group;
      const int64_t head = int64_t{item_.kv_head} * shape_.group + i % shape_.group;
      const float* from = shape_.q + row * shape_.q_stride + head * shape_.head_dim;
      X* to = s_.q + i * s_.q_stride;
      int64_t d = 0;
      for (; d + kLanes <= shape_.head_dim; d += kLanes) Dot::StoreX(Load(from + d), to + d);
      for (; d < 2 * s_.d_pairs; ++d) to[d] = d < shape_.head_dim ? Dot::ToX(from[d]) : X{};
      // Sum 0: no key yet.
      float* state = item_.partial == nullptr ? s_.states + i * s_.state_floats
                                              : item_.partial + i * item_.partial_stride;
      state[s_.d_panels * kLanes + 1] = 0.0f;
    }
  }

  // Where keys [begin_, end_) of the partition lie; false where the table leads outside the cache.
  // Around them, up to whole panels, are rows of zeros: what lies beyond may be unused, NaN or not
  // ours, and is not touched.
  bool FindKeys(int32_t panel_begin, int32_t panel_end) {
    const Stored* const zeros = reinterpret_cast<const Stored*>(s_.zeros);
    const auto* const cache =
        static_cast<const Stored*>(shape_.cache) + item_.kv_head * shape_.head_stride;
    for (int32_t p = base_ + panel_begin; p < begin_; ++p) s_.keys[p - base_] = zeros;
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
    for (int32_t p = end_; p < base_ + panel_end; ++p) s_.keys[p - base_] = zeros;
    return true;
  }

  const Stored* ValueOf(const void* key) const {
    const auto* row = static_cast<const Stored*>(key);
    return key == s_.zeros ? row : row + shape_.v_offset;
  }

  void PrefetchRow(const Stored* row) const {
    for (int64_t byte = 0; byte < shape_.head_dim * static_cast<int64_t>(sizeof(Stored));
         byte += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(row) + byte);
    }
  }

  bool GatherPanels() {
    const int32_t panel_begin = (begin_ - base_) / kLanes * kLanes;
    const int32_t panel_end = static_cast<int32_t>(AlignUp(end_ - base_, kLanes));
    if (!FindKeys(panel_begin, panel_end)) return false;
    constexpr int64_t kPairElements = 2 * kLanes;
    for (int32_t j = panel_begin; j < panel_end; j += kLanes) {
      const int32_t ahead = j + kLanes < panel_end ? j + kLanes : j;
      const Stored* rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        PrefetchRow(static_cast<const Stored*>(s_.keys[ahead + i]));
        PrefetchRow(ValueOf(s_.keys[ahead + i]));
        rows[i] = static_cast<const Stored*>(s_.keys[j + i]);
      }
      TransposePairs(
          rows,
          s_.d_pairs,
          reinterpret_cast<Stored*>(s_.k_panels) + j / kLanes * s_.d_pairs * kPairElements);
      for (int i = 0; i < kLanes; i += 2) {
        InterleaveRows(ValueOf(rows[i]),
                       ValueOf(rows[i + 1]),
                       shape_.head_dim,
                       kPartition / 2 * kPairElements,
                       reinterpret_cast<Stored*>(s_.v_panels) + (j + i) / 2 * kPairElements);
      }
    }
    return true;
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
    Scores<kRows>(first_state, lo_panel, hi_panel);
    for (int r = 0; r < kRows; ++r) Softmax(first_state + r, r, lo_panel, hi_panel);
    WeightedValues<kRows>(lo_panel, hi_panel);
    for (int r = 0; r < kRows; ++r) Keep(first_state + r, r);
  }

  template <int kRows>
  void Scores(int64_t first_state, int32_t lo_panel, int32_t hi_panel) {
    constexpr int kCols = TileCols<Dot>(kRows);
    int32_t panel = lo_panel;
    for (; panel + kCols <= hi_panel; panel += kCols) ScoresOf<kRows, kCols>(first_state, panel);
    for (; panel < hi_panel; ++panel) ScoresOf<kRows, 1>(first_state, panel);
  }
  template <int kRows, int kCols>
  PAGODA_INLINE void ScoresOf(int64_t first_state, int32_t panel) {
    const char* panels[kCols];
    for (int c = 0; c < kCols; ++c)
      panels[c] = s_.k_panels + (panel + c) * s_.d_pairs * Dot::kPairBytes;
    VecF acc[kRows][kCols][Dot::kAccs] = {};
    MultiplyTile<Dot, kRows, kCols, false>(
        s_.q + first_state * s_.q_stride, s_.q_stride, panels, s_.d_pairs, acc);
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kCols; ++c) {
        Store(Dot::Finish(acc[r][c]), s_.scores + r * kPartition + (panel + c) * kLanes);
      }
    }
  }

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
        s = Fma(Set1(slope), ToFloat(LaneIndex() + (panel * kLanes + base_ - position)), s) *
            Set1(kLog2E);
      }
      if (!sees_all(panel)) s = sees(panel) ? s : minus_infinity;
      Store(s, scores + panel * kLanes);
      max = Max(max, s);
    }
    const float m = ReduceMax(max);
    VecF sum = Zero();
    for (int32_t panel = lo_panel; panel < hi_panel; ++panel) {
      VecF w = Exp2(Load(scores + panel * kLanes) - Set1(m));
      if (!sees_all(panel)) w = sees(panel) ? w : Zero();
      // The sum is that of the weights as the values see them.
      sum = sum + Dot::StoreRounded(w, weights + panel * kLanes);
    }
    float* fresh = s_.fresh + r * s_.state_floats + s_.d_panels * kLanes;
    fresh[0] = m;
    fresh[1] = ReduceAdd(sum);
  }

  template <int kRows>
  void WeightedValues(int32_t lo_panel, int32_t hi_panel) {
    constexpr int kCols = TileCols<Dot>(kRows) > 4 ? 4 : TileCols<Dot>(kRows);
    int64_t panel = 0;
    for (; panel + kCols <= s_.d_panels; panel += kCols)
      ValuesOf<kRows, kCols>(panel, lo_panel, hi_panel);
    for (; panel < s_.d_panels; ++panel) ValuesOf<kRows, 1>(panel, lo_panel, hi_panel);
  }
  template <int kRows, int kCols>
  PAGODA_INLINE void ValuesOf(int64_t panel, int32_t lo_panel, int32_t hi_panel) {
    const int64_t first_pair = int64_t{lo_panel} * kLanes / 2;
    const char* panels[kCols];
    for (int c = 0; c < kCols; ++c) {
      panels[c] = s_.v_panels + ((panel + c) * (kPartition / 2) + first_pair) * Dot::kPairBytes;
    }
    VecF acc[kRows][kCols][Dot::kAccs] = {};
    MultiplyTile<Dot, kRows, kCols, false>(s_.weights + lo_panel * kLanes,
                                           kPartition,
                                           panels,
                                           int64_t{hi_panel - lo_panel} * kLanes / 2,
                                           acc);
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kCols; ++c) {
        Store(Dot::Finish(acc[r][c]), s_.fresh + r * s_.state_floats + (panel + c) * kLanes);
      }
    }
  }

  void Keep(int64_t state, int r) {
    const float* fresh = s_.fresh + r * s_.state_floats;
    // A row whose window has passed this partition by, or that comes before it, has nothing here.
    if (FirstKey(Position(state)) > Position(state) || FirstKey(Position(state)) >= end_) return;
    if (item_.partial != nullptr) {
      float* out = item_.partial + state * item_.partial_stride;
      for (int64_t i = 0; i < s_.d_panels * kLanes + kLanes; i += kLanes)
        Store(Load(fresh + i), out + i);
      return;
    }
    MergeState(fresh, s_.d_panels, s_.states + state * s_.state_floats);
  }

 public:
  // Adds the state of later keys to that of earlier ones. A state whose sum is 0 is empty.
  static void MergeState(const float* later, int64_t d_panels, float* state) {
    float* tail = state + d_panels * kLanes;
    const float* later_tail = later + d_panels * kLanes;
    if (later_tail[1] == 0.0f) return;
    if (tail[1] == 0.0f) {
      for (int64_t i = 0; i <= d_panels; ++i) Store(Load(later + i * kLanes), state + i * kLanes);
      return;
    }
    // NaN maxima spread: the comparison fails and the difference is NaN.
    const float m = tail[0] > later_tail[0] ? tail[0] : later_tail[0];
    const VecF a = Exp2(Set1(tail[0] - m));
    const VecF b = Exp2(Set1(later_tail[0] - m));
    for (int64_t i = 0; i < d_panels; ++i) {
      Store(Fma(Load(later + i * kLanes), b, Load(state + i * kLanes) * a), state + i * kLanes);
    }
    tail[0] = m;
    tail[1] = tail[1] * a[0] + later_tail[1] * b[0];
  }

  static void WriteState(const float* state, int32_t head_dim, float v_scale, float* out) {
    const int64_t d_panels = (head_dim + kLanes - 1) / kLanes;
    const VecF factor = Set1(v_scale / state[d_panels * kLanes + 1]);
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      StorePartial(Load(state + d) * factor, out + d, head_dim - d);
    }
  }

 private:
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
  int32_t base_ = 0;   // of the partition, as a position
  int32_t begin_ = 0;  // first and
  int32_t end_ = 0;    // last + 1 key that any row sees here
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

void MergePartials(const float* partials,
                   int64_t partial_stride,
                   int32_t num_partials,
                   int32_t head_dim,
                   float v_scale,
                   float* out) {
  const int64_t d_panels = (head_dim + kLanes - 1) / kLanes;
  // The first partial of a row is scratch of this call: merging into it saves a buffer.
  float* state = const_cast<float*>(partials);
  for (int32_t i = 1; i < num_partials; ++i) {
    Attender<DotF32>::MergeState(partials + i * partial_stride, d_panels, state);
  }
  Attender<DotF32>::WriteState(state, head_dim, v_scale, out);
}

}  // namespace
}  // namespace pagoda::kernels::cpu
