#include "kernels/cuda/linear/gemm_args.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_error.h"

namespace pagoda::kernels::cuda {
namespace {

absl::Status SetRope(const RopeKvWriteParams& rope, GemmArgs& args) {
  const KvCacheView& cache = rope.cache;
  if (rope.cos_sin == nullptr || rope.rotary_dim != cache.head_dim || cache.head_dim % 2 != 0) {
    return UnsupportedError(
        "fused_linear",
        absl::StrCat("rotary_dim ", rope.rotary_dim, " of head_dim ", cache.head_dim));
  }
  if (cache.dtype != rope.dtype) {
    return UnsupportedError("fused_linear", absl::StrCat("a KV cache of ", DTypeName(cache.dtype)));
  }
  args.output = OutputTransform::kRope;
  args.pair_distance = cache.head_dim / 2;
  args.rope = {.cos_sin = rope.cos_sin,
               .positions = rope.batch->positions,
               .kv_slots = rope.batch->kv_slots,
               .cache = cache.data,
               .block_stride = cache.block_stride,
               .v_offset = cache.v_offset,
               .head_stride = cache.head_stride,
               .num_slots = cache.num_blocks * cache.block_size,
               .max_position = static_cast<int32_t>(rope.max_positions - 1),
               .block_size = cache.block_size,
               .head_dim = cache.head_dim,
               .num_q_heads = rope.num_q_heads,
               .num_kv_heads = cache.num_kv_heads,
               .k_factor = 1.0f / cache.k_scale,
               .v_factor = 1.0f / cache.v_scale};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GemmArgs> ToGemmArgs(const LinearParams& p) {
  if (p.weight.format != WeightFormat::kRowMajor) {
    return UnsupportedError("linear", "a weight that is not row-major");
  }
  if (p.weight.dtype != p.x_dtype || (p.y_dtype != p.x_dtype && p.y_dtype != DType::kFloat32)) {
    return UnsupportedError("linear",
                            absl::StrCat("x of ",
                                         DTypeName(p.x_dtype),
                                         ", weight of ",
                                         DTypeName(p.weight.dtype),
                                         ", y of ",
                                         DTypeName(p.y_dtype),
                                         "; x and weight must be alike, y like them or float32"));
  }
  constexpr int64_t kMost = int64_t{1} << 30;
  if (p.m > kMost || p.weight.n > kMost || p.weight.k > kMost) {
    return UnsupportedError(
        "linear",
        absl::StrCat("m = ", p.m, ", n = ", p.weight.n, ", k = ", p.weight.k, " of 2^30 at most"));
  }
  GemmArgs args;
  args.x = p.x;
  args.weight = p.weight.data;
  args.bias = static_cast<const float*>(p.bias);
  args.residual = p.residual;
  args.y = p.y;
  args.x_stride = p.x_stride;
  args.y_stride = p.y_stride;
  args.m = static_cast<int32_t>(p.m);
  args.n = static_cast<int32_t>(p.weight.n);
  args.k = static_cast<int32_t>(p.weight.k);
  args.y_is_float = p.y_dtype == DType::kFloat32 ? 1 : 0;
  return args;
}

absl::StatusOr<GemmArgs> ToGemmArgs(const FusedLinearParams& p) {
  PAGODA_ASSIGN_OR_RETURN(GemmArgs args, ToGemmArgs(p.linear));
  if (p.norm.weight != nullptr) {
    args.transform = InputTransform::kRmsNorm;
    args.norm_weight = p.norm.weight;
    args.norm_epsilon = p.norm.epsilon;
    args.norm_offset = p.norm.weight_offset;
  }
  if (p.silu_mul) {
    args.output = OutputTransform::kSiluMul;
    args.pair_distance = args.n / 2;
  }
  if (p.rope != nullptr) PAGODA_RETURN_IF_ERROR(SetRope(*p.rope, args));
  if (args.output != OutputTransform::kNone && args.y_is_float != 0) {
    return UnsupportedError("fused_linear", "y of float32 beside silu_mul or rope");
  }
  return args;
}

}  // namespace pagoda::kernels::cuda
