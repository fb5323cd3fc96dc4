#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/sample/sample_args.h"
#include "kernels/ops/sample.h"

namespace pagoda::kernels::cuda {

// The op sample. One pass over the logits draws rows that need only an argmax (greedy,
// temperature), whatever their neighbours ask for, and finds where the tokens of rows with top_k
// are, from which a second kernel draws. Other rows are brought into the shared memory of a cluster
// of blocks and read there as often as their filters need. Outside graphs a kernel that no row
// needs is not launched; in a graph all are, so that it serves any row_params. Thread-compatible.
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
  uint32_t* maxima_ = nullptr;        // after it: of blocks of tokens, of kMaxTopRows rows
  // ---- State: what CountSelectClusters said last.
  int32_t counted_vocab_size_ = 0;
  int num_clusters_ = 0;
};

// Launchers of the three kernels; each skips the rows that are another's. `maxima` of a row are the
// OrderedBits of its blocks' largest logits.
absl::Status LaunchSampleStream(const DeviceContext& context,
                                const SampleParams& params,
                                SampleRowState* states,
                                uint32_t* maxima);
absl::Status LaunchSampleTop(const DeviceContext& context,
                             const SampleParams& params,
                             const uint32_t* maxima);
absl::Status LaunchSampleSelect(const DeviceContext& context,
                                const SampleParams& params,
                                int num_clusters,
                                SelectQueue* queue);

// Clusters of SelectKernel that are resident at once; UNIMPLEMENTED if the vocabulary does not fit
// in one.
absl::StatusOr<int> CountSelectClusters(const DeviceContext& context, int32_t vocab_size);

}  // namespace pagoda::kernels::cuda
