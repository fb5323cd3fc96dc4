#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace pagoda::kernels {

// Copies blocks of a paged KV pool in every layer. No block is written twice, or read and written.
// Ids are below num_blocks (the cpu refuses others, a device passes over them).
struct CopyBlocksParams {
  void* data = nullptr;            // [num_layers][num_blocks][block_bytes]
  const int32_t* pairs = nullptr;  // [count, 2], from and to
  int64_t count = 0;
  int64_t num_layers = 0;
  int64_t num_blocks = 0;
  int64_t block_bytes = 0;  // of one layer; whole elements of two bytes
};

absl::Status Validate(const CopyBlocksParams& params);

}  // namespace pagoda::kernels
