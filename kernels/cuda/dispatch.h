#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/dtype.h"

namespace pagoda::kernels::cuda {

// The only list of what the attention kernels are built for: two types of activations and KV, five
// sizes of a head. kernels/cuda/attention/instantiations has one file for each type.
template <typename T>
inline constexpr DType kDTypeOf = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<__nv_bfloat16> = DType::kBFloat16;
template <>
inline constexpr DType kDTypeOf<__half> = DType::kFloat16;

using HeadDims = std::integer_sequence<int, 64, 80, 96, 128, 256>;

// Calls fn.template operator()<T>() for the type of `dtype`.
template <typename Fn>
absl::Status DispatchDType(DType dtype, absl::string_view op, Fn&& fn) {
  if (dtype == DType::kBFloat16) return fn.template operator()<__nv_bfloat16>();
  if (dtype == DType::kFloat16) return fn.template operator()<__half>();
  return absl::UnimplementedError(absl::StrCat(
      op, ": dtype ", DTypeName(dtype), " is not supported on cuda; supported: bfloat16, float16"));
}

template <typename Fn, int... kDims>
absl::Status DispatchHeadDim(int32_t head_dim,
                             absl::string_view op,
                             std::integer_sequence<int, kDims...>,
                             Fn&& fn) {
  absl::Status status = absl::OkStatus();
  const auto matches = [&]<int kDim>() {
    if (head_dim != kDim) return false;
    status.Update(fn.template operator()<kDim>());
    return true;
  };
  const bool found = (matches.template operator()<kDims>() || ...);
  if (found) return status;
  std::string supported;
  (absl::StrAppend(&supported, supported.empty() ? "" : ", ", kDims), ...);
  return absl::UnimplementedError(absl::StrCat(
      op, ": head_dim ", head_dim, " is not supported on cuda; supported: ", supported));
}

// Calls fn.template operator()<T, kHeadDim>().
template <typename Fn>
absl::Status DispatchAttention(DType dtype, int32_t head_dim, absl::string_view op, Fn&& fn) {
  return DispatchDType(dtype, op, [&]<typename T>() {
    return DispatchHeadDim(head_dim, op, HeadDims{}, [&]<int kHeadDim>() {
      return fn.template operator()<T, kHeadDim>();
    });
  });
}

}  // namespace pagoda::kernels::cuda
