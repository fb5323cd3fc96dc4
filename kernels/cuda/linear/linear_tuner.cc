#include "kernels/cuda/linear/linear_tuner.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/weights.h"

namespace pagoda::kernels::cuda {
namespace {

// Weights that follow one another span at least this, several times the L2.
constexpr size_t kSpanBytes = size_t{320} << 20;
// A chain takes about this long, and is run this often after a warm-up; the best time counts, since
// other work can only add to it.
constexpr float kChainUs = 1500.0f;
constexpr int kMinRepeats = 2;
constexpr int kMaxRepeats = 24;
constexpr int kNumRuns = 3;

absl::Status Check(cudaError_t error, absl::string_view call) {
  return CudaStatus(error, call, "measuring linear");
}

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Destroys on every path out.
struct GraphOwner {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ~GraphOwner() {
    if (exec != nullptr) cudaGraphExecDestroy(exec);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearTuner>> LinearTuner::Create(const DeviceContext& context,
                                                                 const LinearKey& key) {
  auto tuner = std::unique_ptr<LinearTuner>(new LinearTuner(context, key));
  tuner->context_.stream = nullptr;
  PAGODA_RETURN_IF_ERROR(tuner->Allocate());
  return tuner;
}

LinearTuner::~LinearTuner() {
  for (void* memory : {weights_,
                       x_,
                       static_cast<void*>(bias_),
                       y_,
                       reference_y_,
                       static_cast<void*>(difference_)}) {
    if (memory != nullptr) cudaFree(memory);
  }
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (end_ != nullptr) cudaEventDestroy(end_);
  if (context_.stream != nullptr) cudaStreamDestroy(context_.stream);
}

absl::Status LinearTuner::Allocate() {
  PAGODA_RETURN_IF_ERROR(Check(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking),
                               "cudaStreamCreate"));
  PAGODA_RETURN_IF_ERROR(Check(cudaEventCreate(&begin_), "cudaEventCreate"));
  PAGODA_RETURN_IF_ERROR(Check(cudaEventCreate(&end_), "cudaEventCreate"));

  const size_t weight_bytes = size_t{2} * key_.n * key_.k;
  weight_step_bytes_ = RoundUp(weight_bytes, 256);
  num_weights_ = static_cast<int>(
      std::clamp<size_t>((kSpanBytes + weight_step_bytes_ - 1) / weight_step_bytes_, 1, 64));
  const size_t y_bytes = size_t{4} * key_.m_bucket * key_.n;
  const auto allocate = [](auto** out, size_t bytes) {
    return Check(cudaMalloc(reinterpret_cast<void**>(out), bytes), "cudaMalloc");
  };
  PAGODA_RETURN_IF_ERROR(allocate(&weights_, num_weights_ * weight_step_bytes_));
  PAGODA_RETURN_IF_ERROR(allocate(&x_, size_t{2} * key_.m_bucket * key_.k));
  PAGODA_RETURN_IF_ERROR(allocate(&bias_, size_t{4} * key_.n));
  PAGODA_RETURN_IF_ERROR(allocate(&y_, y_bytes));
  PAGODA_RETURN_IF_ERROR(allocate(&reference_y_, y_bytes));
  PAGODA_RETURN_IF_ERROR(allocate(&difference_, 2 * sizeof(float)));
  // Random data: zeros run faster than real ones.
  PAGODA_RETURN_IF_ERROR(
      FillNormal(context_,
                 {.data = weights_,
                  .dtype = key_.dtype,
                  .count = static_cast<int64_t>(num_weights_ * weight_step_bytes_ / 2),
                  .stddev = 0.02f,
                  .seed = 1}));
  PAGODA_RETURN_IF_ERROR(FillNormal(context_,
                                    {.data = x_,
                                     .dtype = key_.dtype,
                                     .count = int64_t{key_.m_bucket} * key_.k,
                                     .stddev = 1.0f,
                                     .seed = 2}));
  PAGODA_RETURN_IF_ERROR(
      Check(cudaMemsetAsync(bias_, 0, size_t{4} * key_.n, context_.stream), "cudaMemsetAsync"));
  return Check(cudaStreamSynchronize(context_.stream), "cudaStreamSynchronize");
}

GemmArgs LinearTuner::Args(int repeat, void* y) const {
  GemmArgs args;
  args.x = x_;
  args.weight = static_cast<char*>(weights_) + repeat % num_weights_ * weight_step_bytes_;
  args.bias = key_.has_bias ? bias_ : nullptr;
  args.y = y;
  args.x_stride = key_.k;
  args.y_stride = key_.n;
  args.m = key_.m_bucket;
  args.n = key_.n;
  args.k = key_.k;
  args.y_is_float = key_.y_is_float ? 1 : 0;
  return args;
}

absl::StatusOr<float> LinearTuner::TimeChain(const LinearPlan& plan,
                                             int repeats,
                                             const RunFn& run) {
  GraphOwner graph;
  PAGODA_RETURN_IF_ERROR(
      Check(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture"));
  absl::Status status;
  for (int i = 0; i < repeats && status.ok(); ++i) {
    status = run(context_, key_.dtype, Args(i, y_), plan);
  }
  const cudaError_t ended = cudaStreamEndCapture(context_.stream, &graph.graph);
  PAGODA_RETURN_IF_ERROR(status);
  PAGODA_RETURN_IF_ERROR(Check(ended, "cudaStreamEndCapture"));
  PAGODA_RETURN_IF_ERROR(
      Check(cudaGraphInstantiate(&graph.exec, graph.graph, 0), "cudaGraphInstantiate"));
  float best_ms = std::numeric_limits<float>::max();
  for (int i = 0; i <= kNumRuns; ++i) {
    float ms = 0.0f;
    PAGODA_RETURN_IF_ERROR(Check(cudaEventRecord(begin_, context_.stream), "cudaEventRecord"));
    PAGODA_RETURN_IF_ERROR(Check(cudaGraphLaunch(graph.exec, context_.stream), "cudaGraphLaunch"));
    PAGODA_RETURN_IF_ERROR(Check(cudaEventRecord(end_, context_.stream), "cudaEventRecord"));
    PAGODA_RETURN_IF_ERROR(Check(cudaEventSynchronize(end_), "cudaEventSynchronize"));
    PAGODA_RETURN_IF_ERROR(Check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime"));
    if (i > 0) best_ms = std::min(best_ms, ms);
  }
  return best_ms * 1000.0f / static_cast<float>(repeats);
}

absl::StatusOr<float> LinearTuner::RelativeError(const LinearPlan& plan, const RunFn& run) {
  const size_t y_bytes = size_t{key_.y_is_float ? 4u : 2u} * key_.m_bucket * key_.n;
  // All ones is a NaN in every type: an output that is not written shows.
  PAGODA_RETURN_IF_ERROR(
      Check(cudaMemsetAsync(y_, 0xff, y_bytes, context_.stream), "cudaMemsetAsync"));
  PAGODA_RETURN_IF_ERROR(run(context_, key_.dtype, Args(0, y_), plan));
  PAGODA_RETURN_IF_ERROR(MaxDifference(context_,
                                       key_.y_is_float ? DType::kFloat32 : key_.dtype,
                                       y_,
                                       reference_y_,
                                       int64_t{key_.m_bucket} * key_.n,
                                       difference_));
  float difference[2] = {};
  PAGODA_RETURN_IF_ERROR(Check(
      cudaMemcpyAsync(
          difference, difference_, sizeof(difference), cudaMemcpyDeviceToHost, context_.stream),
      "cudaMemcpyAsync"));
  PAGODA_RETURN_IF_ERROR(Check(cudaStreamSynchronize(context_.stream), "cudaStreamSynchronize"));
  return difference[0] / std::max(difference[1], std::numeric_limits<float>::min());
}

absl::StatusOr<std::vector<LinearTuner::Measurement>> LinearTuner::Measure(
    const LinearPlan& reference, absl::Span<const LinearPlan> candidates, const RunFn& run) {
  PAGODA_RETURN_IF_ERROR(run(context_, key_.dtype, Args(0, reference_y_), reference));
  PAGODA_ASSIGN_OR_RETURN(const float first_us, TimeChain(reference, kMinRepeats, run));
  const int repeats = std::clamp(static_cast<int>(kChainUs / first_us), kMinRepeats, kMaxRepeats);
  std::vector<Measurement> measurements;
  for (const LinearPlan& plan : candidates) {
    Measurement& m = measurements.emplace_back(Measurement{.plan = plan});
    const absl::StatusOr<float> error = RelativeError(plan, run);
    m.status = error.status();
    if (!error.ok()) continue;
    m.relative_error = *error;
    const absl::StatusOr<float> time = TimeChain(plan, repeats, run);
    m.status = time.status();
    if (time.ok()) m.time_us = *time;
  }
  return measurements;
}

}  // namespace pagoda::kernels::cuda
