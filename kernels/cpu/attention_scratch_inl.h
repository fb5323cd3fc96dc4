#pragma once

#include "kernels/cpu/gemm_inl.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd_math.h"

namespace pagoda::kernels::cpu {
namespace {

constexpr int64_t AlignUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Scratch of one thread for attention, laid out in one allocation. A state is one (row, query
// head).
template <typename Dot>
struct AttentionScratch {
  using X = typename Dot::X;
  static constexpr int64_t kPartitionPanels = kPartition / kLanes;

  char* k_panels;  // [kPartition / 16][d_pairs][16][2]
  char* v_panels;  // [d_panels], v_panel_bytes apart, of [kPartition / 2][16][2]
  float* scores;   // [kMaxRows][kPartition]
  X* weights;      // [kMaxRows][kPartition]
  X* q;            // [num_states][q_stride]
  float* states;   // [num_states][state_floats]
  float* fresh;    // [kMaxRows][state_floats], of the partition at hand
  const void**
      keys;     // [kPartition], where each key of the partition lies; its value is v_offset on
  char* zeros;  // [head_dim], stands for keys that are not there

  int64_t d_pairs;
  int64_t d_panels;
  int64_t k_panel_bytes;
  int64_t v_panel_bytes;
  int64_t q_stride;
  int64_t state_floats;
  int64_t total_bytes;

  AttentionScratch(void* base, int32_t head_dim, int64_t num_states) {
    constexpr int64_t kLineX = 64 / static_cast<int64_t>(sizeof(X));
    d_pairs = head_dim / 2;
    d_panels = (head_dim + kLanes - 1) / kLanes;
    k_panel_bytes = d_pairs * Dot::kPairBytes;
    // One line more than a power of two: the panels of one key must not share a set of the
    // first-level cache.
    v_panel_bytes = kPartition / 2 * Dot::kPairBytes + 64;
    q_stride = AlignUp(head_dim, kLineX) + kLineX;
    state_floats = AttentionStateFloats(head_dim);
    char* p = static_cast<char*>(base);
    const auto take = [&p](int64_t bytes) {
      char* at = p;
      p += AlignUp(bytes, 64);
      return at;
    };
    k_panels = take(kPartitionPanels * k_panel_bytes);
    v_panels = take(d_panels * v_panel_bytes);
    scores = reinterpret_cast<float*>(take(Dot::kMaxRows * kPartition * 4));
    weights =
        reinterpret_cast<X*>(take(Dot::kMaxRows * kPartition * static_cast<int64_t>(sizeof(X))));
    q = reinterpret_cast<X*>(take(num_states * q_stride * static_cast<int64_t>(sizeof(X))));
    states = reinterpret_cast<float*>(take(num_states * state_floats * 4));
    fresh = reinterpret_cast<float*>(take(Dot::kMaxRows * state_floats * 4));
    keys = reinterpret_cast<const void**>(take(kPartition * static_cast<int64_t>(sizeof(void*))));
    zeros = take(int64_t{head_dim} * 4);
    total_bytes = p - static_cast<char*>(base);
  }

  // Maximum (to base 2) and sum of a state follow its weighted sum of values.
  float* Tail(float* state) const { return state + d_panels * kLanes; }
};

// Adds the state of later keys to that of earlier ones. A state whose sum is 0 is empty.
inline void MergeState(const float* later, int64_t d_panels, float* state) {
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

inline void WriteState(const float* state, int32_t head_dim, float v_scale, float* out) {
  const int64_t d_panels = (head_dim + kLanes - 1) / kLanes;
  const VecF factor = Set1(v_scale / state[d_panels * kLanes + 1]);
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    StorePartial(Load(state + d) * factor, out + d, head_dim - d);
  }
}

}  // namespace
}  // namespace pagoda::kernels::cpu
