#include "engine/model/kv_pool.h"

#include "kernels/base/status_macros.h"

namespace pagoda::engine {

uint64_t KvPool::BlockBytes(const ModelConfig& model, DType dtype, int32_t block_size) {
  return 2 * static_cast<uint64_t>(model.num_layers) * static_cast<uint64_t>(model.num_kv_heads) *
         static_cast<uint64_t>(block_size) * static_cast<uint64_t>(model.head_dim) *
         DTypeBytes(dtype);
}

int32_t KvPool::Window(const ModelConfig& model) {
  for (int32_t layer = 0; layer < model.num_layers; ++layer) {
    if (!model.HasWindow(layer)) return 0;
  }
  return model.sliding_window.value_or(0);
}

absl::StatusOr<KvPool> KvPool::Allocate(kernels::Backend& backend,
                                        const ModelConfig& model,
                                        DType dtype,
                                        int32_t num_blocks,
                                        int32_t block_size) {
  const int64_t head_stride = int64_t{block_size} * model.head_dim;
  const int64_t v_offset = head_stride * model.num_kv_heads;
  KvPool pool;
  pool.first_layer_ = {.dtype = dtype,
                       .num_blocks = num_blocks,
                       .block_size = block_size,
                       .num_kv_heads = model.num_kv_heads,
                       .head_dim = model.head_dim,
                       .block_stride = 2 * v_offset,
                       .v_offset = v_offset,
                       .head_stride = head_stride};
  pool.layer_bytes_ =
      static_cast<uint64_t>(num_blocks) * static_cast<uint64_t>(2 * v_offset) * DTypeBytes(dtype);
  const uint64_t total_bytes = static_cast<uint64_t>(model.num_layers) * pool.layer_bytes_;
  PAGODA_ASSIGN_OR_RETURN(pool.buffer_, backend.Allocate(total_bytes, "KV cache"));
  return pool;
}

kernels::CopyBlocksParams KvPool::Copies(const int32_t* pairs, int64_t count) const {
  const auto layer_bytes = static_cast<int64_t>(layer_bytes_);
  return {.data = buffer_.data(),
          .pairs = pairs,
          .count = count,
          .num_layers = static_cast<int64_t>(buffer_.size_bytes()) / layer_bytes,
          .num_blocks = first_layer_.num_blocks,
          .block_bytes = layer_bytes / first_layer_.num_blocks};
}

kernels::KvCacheView KvPool::layer(int32_t idx) const {
  kernels::KvCacheView view = first_layer_;
  view.data = buffer_.as<char>() + static_cast<uint64_t>(idx) * layer_bytes_;
  return view;
}

}  // namespace pagoda::engine
