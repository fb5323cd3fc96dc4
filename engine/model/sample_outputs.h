#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace pagoda::engine {

// What sampling gave for one chunk, on the host; row i's top entries begin at i * max_top.
struct SampledChunk {
  const int32_t* tokens = nullptr;
  const float* logprobs = nullptr;
  const int32_t* ranks = nullptr;
  const int32_t* top_ids = nullptr;
  const float* top_logprobs = nullptr;
  int32_t max_top = 0;
};

// The memory that sampling writes to, and its copies on the host. Thread-compatible.
class SampleOutputs {
 public:
  static absl::StatusOr<SampleOutputs> Allocate(kernels::Backend& backend,
                                                int32_t max_logit_rows,
                                                int32_t vocab_size,
                                                int num_sets);

  // Rows that one chunk can have when each gives `max_top` entries; at least 1.
  int32_t MaxRows(int32_t max_top) const;
  // Sets the output fields of `params`.
  void SetParams(int32_t max_top, kernels::SampleParams* params) const;
  // Enqueues the copies to the host; they may be read through the result once they have run.
  // Without `with_logprobs` the tokens alone.
  absl::StatusOr<SampledChunk> CopyToHost(kernels::Backend& backend,
                                          int64_t rows,
                                          bool with_logprobs,
                                          int32_t max_top,
                                          int set_idx) const;

 private:
  struct Arrays {
    int32_t* tokens = nullptr;
    float* logprobs = nullptr;
    int32_t* ranks = nullptr;
    int32_t* top_ids = nullptr;
    float* top_logprobs = nullptr;
  };
  Arrays Lay(void* base) const;

  int32_t max_logit_rows_ = 0;
  int64_t max_top_entries_ = 0;
  kernels::Buffer device_;
  std::vector<kernels::Buffer> host_;
};

}  // namespace pagoda::engine
