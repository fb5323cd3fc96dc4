// Sixteen 32-bit (or eight 64-bit) lanes where no register holds 64 bytes: two vectors of 32 bytes.
// GCC keeps a 64-byte vector type in memory on such processors; a pair of members it keeps in
// registers. Has the operators of a GCC vector type but for ?:, which is Select.
#pragma once

#include <cstdint>
#include <cstring>

namespace pagoda::kernels::cpu {
namespace {

template <typename T>
struct MaskOf {
  using Type = T;
};
template <>
struct MaskOf<float> {
  using Type = int32_t;
};
template <>
struct MaskOf<uint32_t> {
  using Type = int32_t;
};

template <typename T>
struct Pair {
  typedef T Half __attribute__((vector_size(32)));
  static constexpr int kHalfLanes = 32 / static_cast<int>(sizeof(T));
  using Mask = Pair<typename MaskOf<T>::Type>;

  Half lo, hi;

  // The same bits.
  template <typename U>
  explicit operator Pair<U>() const {
    return {(typename Pair<U>::Half)lo, (typename Pair<U>::Half)hi};
  }
  T operator[](int lane) const { return lane < kHalfLanes ? lo[lane] : hi[lane - kHalfLanes]; }

#define PAGODA_PAIR_OPERATOR(op)                                                  \
  friend inline __attribute__((always_inline)) Pair operator op(Pair a, Pair b) { \
    return {a.lo op b.lo, a.hi op b.hi};                                          \
  }                                                                               \
  friend inline __attribute__((always_inline)) Pair operator op(Pair a, T b) {    \
    return {a.lo op b, a.hi op b};                                                \
  }
  PAGODA_PAIR_OPERATOR(+)
  PAGODA_PAIR_OPERATOR(-)
  PAGODA_PAIR_OPERATOR(*)
  PAGODA_PAIR_OPERATOR(/)
  PAGODA_PAIR_OPERATOR(&)
  PAGODA_PAIR_OPERATOR(|)
  PAGODA_PAIR_OPERATOR(^)
#undef PAGODA_PAIR_OPERATOR
  friend inline __attribute__((always_inline)) Pair operator<<(Pair a, int bits) {
    return {a.lo << bits, a.hi << bits};
  }
  friend inline __attribute__((always_inline)) Pair operator>>(Pair a, int bits) {
    return {a.lo >> bits, a.hi >> bits};
  }
  friend inline __attribute__((always_inline)) Pair operator-(Pair a) { return {-a.lo, -a.hi}; }

  // True lanes are -1.
#define PAGODA_PAIR_COMPARISON(op)                                                     \
  friend inline __attribute__((always_inline)) Mask operator op(Pair a, Pair b) {      \
    return {(typename Mask::Half)(a.lo op b.lo), (typename Mask::Half)(a.hi op b.hi)}; \
  }                                                                                    \
  friend inline __attribute__((always_inline)) Mask operator op(Pair a, T b) {         \
    return {(typename Mask::Half)(a.lo op b), (typename Mask::Half)(a.hi op b)};       \
  }
  PAGODA_PAIR_COMPARISON(==)
  PAGODA_PAIR_COMPARISON(!=)
  PAGODA_PAIR_COMPARISON(<)
  PAGODA_PAIR_COMPARISON(<=)
  PAGODA_PAIR_COMPARISON(>)
  PAGODA_PAIR_COMPARISON(>=)
#undef PAGODA_PAIR_COMPARISON
};

}  // namespace
}  // namespace pagoda::kernels::cpu
