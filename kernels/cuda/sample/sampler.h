#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/sample/sample_args.h"
#include "kernels/ops/sample.h"

namespace pagoda::kernels::cuda {

// The op sample. Rows that need only an argmax (greedy, temperature) are drawn by one pass over
// their logits, whatever their neighbours ask for; the others are brought into the shared memory of
// a cluster of blocks and read there as often as their filters need. Outside graphs a kernel that
// no row needs is not launched; in a graph both are, so that it serves any row_params.
// Thread-compatible.
class Sampler {
 public:
  // `context` must outlive it.
  static absl::StatusOr<std::unique_ptr<Sampler>> Create(const DeviceContext& context);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // REQUIRES: params passed Validate.
  absl::Status Run(const SampleParams& params);

 private:
  explicit Sampler(const DeviceContext& context) : context_(context) {}

  // ---- Constant.
  const DeviceContext& context_;
  SampleRowState* states_ = nullptr;  // [kMaxRows], device
  SelectQueue* queue_ = nullptr;      // after them
  // ---- State: what CountSelectClusters said last.
  int32_t counted_vocab_size_ = 0;
  int num_clusters_ = 0;
};

// Launchers of the two kernels; each skips the rows that are the other's.
absl::Status LaunchSampleStream(const DeviceContext& context,
                                const SampleParams& params,
                                SampleRowState* states);
absl::Status LaunchSampleSelect(const DeviceContext& context,
                                const SampleParams& params,
                                int num_clusters,
                                SelectQueue* queue);

// Clusters of SelectKernel that are resident at once; UNIMPLEMENTED if the vocabulary does not fit
// in one.
absl::StatusOr<int> CountSelectClusters(const DeviceContext& context, int32_t vocab_size);

}  // namespace pagoda::kernels::cuda
