#include "kernels/ops/copy_blocks.h"

#include "kernels/base/status_macros.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {

absl::Status Validate(const CopyBlocksParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("CopyBlocks.count", params.count, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("CopyBlocks.num_layers", params.num_layers, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("CopyBlocks.num_blocks", params.num_blocks, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("CopyBlocks.block_bytes", params.block_bytes, 2));
  PAGODA_RETURN_IF_ERROR(RequireMultiple("CopyBlocks.block_bytes", params.block_bytes, 2));
  if (params.count == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(RequirePointer("CopyBlocks.pairs", params.pairs));
  return RequirePointer("CopyBlocks.data", params.data);
}

}  // namespace pagoda::kernels
