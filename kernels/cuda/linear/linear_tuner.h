#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/linear/linear_plan.h"

namespace pagoda::kernels::cuda {

// Measures plans where it counts: in a recorded chain of dependent launches, each with other
// weights, so that neither the L2 nor the gaps between kernels flatter anyone. Uses a stream and
// memory of its own, freed at once. The caller's stream must be idle: workspaces are shared.
class LinearTuner {
 public:
  // Enqueues one product by a plan on the stream of the context given.
  using RunFn = std::function<absl::Status(
      const DeviceContext& context, DType dtype, const GemmArgs& args, const LinearPlan& plan)>;

  struct Measurement {
    LinearPlan plan;
    float time_us = 0.0f;         // of one product; best of several chains
    float relative_error = 0.0f;  // largest difference from the reference over its largest element
    absl::Status status;          // why there is no time
  };

  static absl::StatusOr<std::unique_ptr<LinearTuner>> Create(const DeviceContext& context,
                                                             const LinearKey& key);
  ~LinearTuner();
  LinearTuner(const LinearTuner&) = delete;
  LinearTuner& operator=(const LinearTuner&) = delete;

  // Every candidate's time, in their order; `reference` is what they are compared with.
  absl::StatusOr<std::vector<Measurement>> Measure(const LinearPlan& reference,
                                                   absl::Span<const LinearPlan> candidates,
                                                   const RunFn& run);

 private:
  LinearTuner(const DeviceContext& context, const LinearKey& key) : context_(context), key_(key) {}
  absl::Status Allocate();
  GemmArgs Args(int repeat, void* y) const;
  absl::StatusOr<float> TimeChain(const LinearPlan& plan, int repeats, const RunFn& run);
  absl::StatusOr<float> RelativeError(const LinearPlan& plan, const RunFn& run);

  // ---- Constant after Create.
  DeviceContext context_;  // the caller's, with a stream of our own
  const LinearKey key_;
  int num_weights_ = 1;
  size_t weight_step_bytes_ = 0;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  void* weights_ = nullptr;
  void* x_ = nullptr;
  float* bias_ = nullptr;
  void* y_ = nullptr;
  void* reference_y_ = nullptr;
  float* difference_ = nullptr;  // [2]
};

// out[0] = max |a[i] - b[i]|, out[1] = max |b[i]|; NaN counts as infinity. compare.cu.
absl::Status MaxDifference(const DeviceContext& context,
                           DType dtype,
                           const void* a,
                           const void* b,
                           int64_t count,
                           float* out);

}  // namespace pagoda::kernels::cuda
