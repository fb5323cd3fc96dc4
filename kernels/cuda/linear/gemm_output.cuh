#pragma once

#include "kernels/cuda/linear/gemm_device.cuh"

// Ends of products that are computed in pairs of columns (OutputTransform).

namespace pagoda::kernels::cuda {

// Column of the product where a pair begins; its partner is pair_distance further.
__device__ __forceinline__ int PairColumn(const GemmArgs& a, int pair) {
  const int block = pair / a.pair_distance;
  return pair + block * a.pair_distance;
}

// What one lane needs to finish its column of a pair, read before the sums are there.
struct PairPlace {
  float cosine = 1.0f;
  float sine = 0.0f;
  float factor = 1.0f;  // on the way to the cache
  int64_t at = -1;      // of y or the cache, in elements; -1: nowhere
  bool in_cache = false;
};

// Where a row of x goes in the sequence and in the cache: of kRope, read once for all pairs.
struct RowPlace {
  int32_t position = 0;
  int64_t at = -1;  // element of the cache where the row's keys of head 0 begin; -1: nowhere
};

// REQUIRES: WaitForPrevious was called.
__device__ __forceinline__ RowPlace FindRowPlace(const GemmArgs& a, int m) {
  RowPlace place;
  if (a.output != OutputTransform::kRope) return place;
  const RopeOutput& r = a.rope;
  const int slot = r.kv_slots[m];
  place.position = min(max(r.positions[m], 0), r.max_position);
  // Padding rows and slots outside the pool write nothing.
  if (slot < 0 || slot >= r.num_slots) return place;
  const int block = slot / r.block_size;
  place.at = block * r.block_stride + int64_t{slot - block * r.block_size} * r.head_dim;
  return place;
}

// Of row m, of the first (which = 0) or second (1) column of a pair.
__device__ __forceinline__ PairPlace
FindPairPlace(const GemmArgs& a, const RowPlace& row, int m, int pair, int which) {
  PairPlace place;
  if (a.output == OutputTransform::kSiluMul) {
    if (which == 0) place.at = m * a.y_stride + pair;
    return place;
  }
  const RopeOutput& r = a.rope;
  const int half = a.pair_distance;
  const int head = pair / half;
  const int i = pair - head * half;
  const int in_head = i + which * half;
  const bool is_value = head >= r.num_q_heads + r.num_kv_heads;
  if (!is_value) {
    const float* angles = r.cos_sin + int64_t{row.position} * r.head_dim + i;
    place.cosine = angles[0];
    place.sine = angles[half];
  }
  if (head < r.num_q_heads) {
    place.at = m * a.y_stride + head * r.head_dim + in_head;
    return place;
  }
  place.in_cache = true;
  place.factor = is_value ? r.v_factor : r.k_factor;
  if (row.at < 0) return place;
  const int kv_head = head - r.num_q_heads - (is_value ? r.num_kv_heads : 0);
  place.at = row.at + (is_value ? r.v_offset : 0) + kv_head * r.head_stride + in_head;
  return place;
}

// `value` is this lane's sum, `partner` the other column's.
template <typename T>
__device__ __forceinline__ void StorePair(
    const GemmArgs& a, const PairPlace& place, int which, float value, float partner) {
  if (place.at < 0) return;
  value = ToFloat(FromFloat<T>(value));
  partner = ToFloat(FromFloat<T>(partner));
  if (a.output == OutputTransform::kSiluMul) {
    static_cast<T*>(a.y)[place.at] = FromFloat<T>(Silu(value) * partner);
    return;
  }
  const float rotated = which == 0 ? value * place.cosine - partner * place.sine
                                   : value * place.cosine + partner * place.sine;
  T out = FromFloat<T>(rotated);
  if (!place.in_cache) {
    static_cast<T*>(a.y)[place.at] = out;
    return;
  }
  if (place.factor != 1.0f) out = FromFloat<T>(ToFloat(out) * place.factor);
  static_cast<T*>(a.rope.cache)[place.at] = out;
}

}  // namespace pagoda::kernels::cuda
