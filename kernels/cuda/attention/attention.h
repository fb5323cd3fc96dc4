#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/ops/attention.h"

namespace pagoda::kernels::cuda {

// Paged attention on the engine's layout, bfloat16 and float16. Per step: MakeAttentionPlan into
// pinned memory, copy to the plan buffer; per layer: one launch of decode and, if the step has
// longer sequences, one of prefill. Grids and addresses depend on AttentionGeometry alone, so both
// may be captured in a graph.

struct AttentionGeometry {
  DType dtype = DType::kBFloat16;
  int32_t head_dim = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t max_seqs = 0;
  int32_t max_rows = 0;
  int32_t num_multiprocessors = 0;
};

absl::StatusOr<AttentionPlanShape> MakeAttentionPlanShape(const AttentionGeometry& geometry);

// Scratch of decode launches. Zeros before the first launch; launches that may overlap need one
// each.
int64_t AttentionWorkspaceBytes(const AttentionPlanShape& shape, int32_t head_dim);

enum class PrefillKernel : uint8_t {
  kAuto,
  kMma,    // mma.sync and cp.async: every head_dim and block size
  kWgmma,  // TMA and wgmma: head_dim 64, 128, 256
};

struct AttentionLaunch {
  const PagedAttentionParams* params = nullptr;
  AttentionPlanShape shape;
  const void* plan = nullptr;  // device, shape.size_bytes(), 16-byte aligned
  void* workspace = nullptr;   // device, AttentionWorkspaceBytes(), 16-byte aligned
  // Programmatic dependent launch. REQUIRES: plan, lengths, tables and the cache but for this
  // step's tokens were complete before the kernel ahead in the stream began.
  bool programmatic = false;
  PrefillKernel prefill_kernel = PrefillKernel::kAuto;
};

// The rows of the plan's decode sequences; other rows of `out` are not touched.
absl::Status LaunchPagedAttentionDecode(const AttentionLaunch& launch, cudaStream_t stream);

// The rows of the plan's prefill tiles.
absl::Status LaunchPagedAttentionPrefill(const AttentionLaunch& launch, cudaStream_t stream);

absl::Status LaunchRopeKvWrite(const RopeKvWriteParams& params,
                               bool programmatic,
                               cudaStream_t stream);

}  // namespace pagoda::kernels::cuda
