#include "kernels/ops/copy_blocks.h"

#include <cstring>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/ops.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels::cpu {

absl::Status CopyBlocks(Context& context, const CopyBlocksParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  for (int64_t i = 0; i < 2 * params.count; ++i) {
    PAGODA_RETURN_IF_ERROR(
        RequireBetween("CopyBlocks.pairs entry", params.pairs[i], 0, params.num_blocks - 1));
  }
  const int64_t num_copies = params.count * params.num_layers;
  context.ParallelFor(
      num_copies, num_copies * params.block_bytes / 16, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const int32_t* const pair = params.pairs + 2 * (i % params.count);
          char* const layer = static_cast<char*>(params.data) +
                              i / params.count * params.num_blocks * params.block_bytes;
          std::memcpy(layer + pair[1] * params.block_bytes,
                      layer + pair[0] * params.block_bytes,
                      static_cast<size_t>(params.block_bytes));
        }
      });
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cpu
