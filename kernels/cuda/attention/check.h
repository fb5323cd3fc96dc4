#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/ops/attention.h"

namespace pagoda::kernels::cuda {

// What the kernels ask of a cache beyond what the op does: 16-byte vectors, blocks that are powers
// of two.
absl::Status CheckKvCache(const KvCacheView& cache, DType dtype, absl::string_view op);

// That the launch's parts belong together.
absl::Status CheckAttentionLaunch(const AttentionLaunch& launch, absl::string_view op);

}  // namespace pagoda::kernels::cuda
