#pragma once

#include <cstddef>
#include <cstdint>
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/linear/gemm_args.h"

namespace pagoda::kernels::cuda {

// An algorithm of cuBLASLt: opaque, storable, valid for one version of the library.
struct LtAlgorithm {
  cublasLtMatmulAlgo_t algo = {};
};

// Products through cuBLASLt, for all that our own kernels do not cover: any m, any alignment. Bias
// and residual are part of the product. Thread-compatible.
class LtGemm {
 public:
  // `workspace` (16-byte aligned) is used by every product, so products must be on one stream at a
  // time.
  static absl::StatusOr<std::unique_ptr<LtGemm>> Create(void* workspace, size_t workspace_bytes);
  ~LtGemm();
  LtGemm(const LtGemm&) = delete;
  LtGemm& operator=(const LtGemm&) = delete;

  static std::string Version();

  // The library's own ranking, best first; empty if it has none for the shape.
  absl::StatusOr<std::vector<LtAlgorithm>> Candidates(DType dtype, const GemmArgs& args, int most);

  // On context.stream. Null `algorithm`, or one that this exact shape refuses: the library's first
  // choice.
  absl::Status Run(const DeviceContext& context,
                   DType dtype,
                   const GemmArgs& args,
                   const LtAlgorithm* algorithm);

 private:
  // What the descriptors of a product depend on.
  struct Shape {
    DType dtype;
    bool y_is_float;
    bool has_bias;
    int32_t m, n, k;
    int64_t x_stride, y_stride;
    uint32_t alignment;  // bytes, of all operands

    bool operator==(const Shape&) const = default;
  };
  struct ShapeHash {
    size_t operator()(const Shape& shape) const;
  };
  struct Problem;

  LtGemm(cublasLtHandle_t handle, void* workspace, size_t workspace_bytes);
  absl::StatusOr<Problem*> ProblemFor(DType dtype, const GemmArgs& args);

  // ---- Constant.
  cublasLtHandle_t handle_;
  void* workspace_;
  size_t workspace_bytes_;
  void* bias_scratch_;  // the tail of the workspace
  // ---- State.
  std::unordered_map<Shape, std::unique_ptr<Problem>, ShapeHash> problems_;
};

// dst[i] = src[i] in dtype (bfloat16, float16). lt_bias.cu.
absl::Status ConvertBias(
    const DeviceContext& context, DType dtype, const float* src, void* dst, int32_t n);

}  // namespace pagoda::kernels::cuda
