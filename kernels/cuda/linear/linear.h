#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/linear/linear_plan.h"
#include "kernels/cuda/linear/linear_tuner.h"
#include "kernels/cuda/linear/lt_gemm.h"
#include "kernels/cuda/linear/plan_cache.h"

namespace pagoda::kernels::cuda {

// The op linear: chooses a plan for each (type, n, k, bucket of m) by measurement, once for a
// machine (PlanCache), and runs it. Thread-compatible.
class LinearRunner {
 public:
  // `context` must outlive it. Takes 34 MB of device memory.
  static absl::StatusOr<std::unique_ptr<LinearRunner>> Create(const DeviceContext& context,
                                                              const std::string& cache_folder);
  ~LinearRunner();
  LinearRunner(const LinearRunner&) = delete;
  LinearRunner& operator=(const LinearRunner&) = delete;

  // Measures first if the key is new and nothing is being recorded: run a bucket once before
  // recording it. While recording, an unmeasured key takes a default. REQUIRES: args.m > 0.
  absl::Status Run(DType dtype, const GemmArgs& args);
  // By the plan that shapes alone choose.
  absl::Status RunFixed(DType dtype, const GemmArgs& args);

  // Products with transforms. Whether RunFused takes them and is worth it; measures like Run.
  bool SupportsFused(DType dtype, const GemmArgs& args);
  absl::Status RunFused(DType dtype, const GemmArgs& args);

  // For tests and benchmarks: one plan, without choosing.
  absl::Status RunPlan(const DeviceContext& context,
                       DType dtype,
                       const GemmArgs& args,
                       const LinearPlan& plan);
  // For benchmarks: every candidate's measurement, cuBLASLt's first.
  absl::StatusOr<std::vector<LinearTuner::Measurement>> MeasureAll(const LinearKey& key);

  // Without it, Run never measures: keys that have no plan take the default and are wanted.
  void set_measure(bool measure) { measure_ = measure; }
  // Measures a wanted key: true if there was one.
  absl::StatusOr<bool> MeasureWanted();

 private:
  explicit LinearRunner(const DeviceContext& context) : context_(context) {}
  absl::Status Init(const std::string& cache_folder);
  bool Fits(const GemmArgs& args, const LinearPlan& plan) const;
  LinearPlan DefaultPlan(const GemmArgs& args) const;
  const LinearPlan& PlanFor(DType dtype, const GemmArgs& args);
  std::optional<LinearPlan> FusedPlan(DType dtype, const GemmArgs& args);
  absl::StatusOr<std::vector<LinearTuner::Measurement>> Measure(const LinearKey& key, bool has_own);
  void MeasureKey(const LinearKey& key, const GemmArgs& args);

  // ---- Constant after Init.
  const DeviceContext& context_;
  void* workspace_ = nullptr;  // cuBLASLt's
  std::unique_ptr<LtGemm> lt_;
  std::unique_ptr<PlanCache> cache_;
  // ---- State.
  LinearPlanTable plans_;
  LinearPlan fallback_;  // what PlanFor returned last for a key without a plan
  bool measure_ = true;
  std::vector<LinearKey> wanted_;
};

}  // namespace pagoda::kernels::cuda
