#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"
#include "kernels/base/dtype.h"

namespace pagoda::engine {

// The paged keys and values of every layer: [layer][block][K|V][kv_head][slot][d].
class KvPool {
 public:
  static absl::StatusOr<KvPool> Allocate(kernels::Backend& backend,
                                         const ModelConfig& model,
                                         DType dtype,
                                         int32_t num_blocks,
                                         int32_t block_size);
  // Of one block over all layers.
  static uint64_t BlockBytes(const ModelConfig& model, DType dtype, int32_t block_size);

  // Tokens that every layer sees at most; 0: some layer sees all.
  static int32_t Window(const ModelConfig& model);

  kernels::KvCacheView layer(int32_t idx) const;
  // Of `count` blocks in all layers; `pairs` as CopyBlocksParams has them.
  kernels::CopyBlocksParams Copies(const int32_t* pairs, int64_t count) const;
  uint64_t size_bytes() const { return buffer_.size_bytes(); }

 private:
  kernels::KvCacheView first_layer_;
  uint64_t layer_bytes_ = 0;
  kernels::Buffer buffer_;
};

}  // namespace pagoda::engine
