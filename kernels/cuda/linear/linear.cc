#include "kernels/cuda/linear/linear.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_error.h"

namespace pagoda::kernels::cuda {
namespace {

// What NVIDIA recommends for Hopper, and 2 MB for a bias.
constexpr size_t kLtWorkspaceBytes = size_t{34} << 20;
// Of cuBLASLt's ranking, what is measured. The best is among the first eight for all shapes seen.
constexpr int kNumLtCandidates = 8;
// Up to here our own kernels are measured beside cuBLASLt's, and products with transforms fused: in
// a step of the 8B shape that saves 7 % with 4 rows and 3 % with 8. Beyond, bringing x to every
// block takes longer than what fusing saves.
constexpr int kMaxOwnRows = 8;
// Where a warp for each row of the weight is quicker than tensor cores.
constexpr int kMaxRingRows = 2;
// Beyond this a plan computes something else than cuBLASLt; bfloat16 outputs differ by 2^-8 of the
// largest at most.
constexpr float kMostRelativeError = 0.02f;

LinearKey KeyOf(DType dtype, const GemmArgs& args) {
  return {.dtype = dtype,
          .y_is_float = args.y_is_float != 0,
          .has_bias = args.bias != nullptr,
          .n = args.n,
          .k = args.k,
          .m_bucket = LinearBucket(args.m)};
}

// Any product of the key.
GemmArgs ShapeOf(const LinearKey& key) {
  static constexpr float kSomeBias = 0.0f;  // its address only
  GemmArgs shape;
  shape.x_stride = key.k;
  shape.y_stride = key.n;
  shape.m = key.m_bucket;
  shape.n = key.n;
  shape.k = key.k;
  shape.y_is_float = key.y_is_float ? 1 : 0;
  shape.bias = key.has_bias ? &kSomeBias : nullptr;
  return shape;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinearRunner>> LinearRunner::Create(
    const DeviceContext& context, const std::string& cache_folder) {
  auto runner = std::unique_ptr<LinearRunner>(new LinearRunner(context));
  PAGODA_RETURN_IF_ERROR(runner->Init(cache_folder));
  return runner;
}

LinearRunner::~LinearRunner() {
  lt_.reset();
  if (workspace_ != nullptr) cudaFree(workspace_);
}

absl::Status LinearRunner::Init(const std::string& cache_folder) {
  PAGODA_RETURN_IF_ERROR(CudaStatus(
      cudaMalloc(&workspace_, kLtWorkspaceBytes), "cudaMalloc", "the workspace of linear"));
  PAGODA_ASSIGN_OR_RETURN(lt_, LtGemm::Create(workspace_, kLtWorkspaceBytes));
  cache_ = std::make_unique<PlanCache>(
      cache_folder, absl::StrCat(context_.name, "-", context_.num_sms), LtGemm::Version());
  plans_ = cache_->Read();
  return absl::OkStatus();
}

bool LinearRunner::Fits(const GemmArgs& args, const LinearPlan& plan) const {
  if (const auto* gemv = std::get_if<GemvConfig>(&plan)) return GemvFits(context_, *gemv, args);
  if (const auto* ring = std::get_if<GemvRingConfig>(&plan)) {
    return GemvRingFits(context_, *ring, args);
  }
  if (const auto* narrow = std::get_if<NarrowConfig>(&plan)) {
    return NarrowFits(context_, *narrow, args);
  }
  return args.transform == InputTransform::kNone && args.output == OutputTransform::kNone;
}

LinearPlan LinearRunner::DefaultPlan(const GemmArgs& args) const {
  if (args.m <= kMaxRingRows) {
    for (const GemvRingConfig& config : {GemvRingConfig{16, 4, 1}, GemvRingConfig{16, 3, 1}}) {
      if (const LinearPlan ring = config; Fits(args, ring)) return ring;
    }
    const LinearPlan gemv = GemvConfig{};
    if (Fits(args, gemv)) return gemv;
  } else if (args.m <= kMaxOwnRows) {
    for (const int split : {1, 2, 4, 8}) {
      for (const int chunk : {1024, 512}) {
        if (const LinearPlan narrow = NarrowConfig{chunk, split}; Fits(args, narrow)) return narrow;
      }
    }
  }
  return LtAlgorithm{};
}

const LinearPlan& LinearRunner::PlanFor(DType dtype, const GemmArgs& args) {
  const LinearKey key = KeyOf(dtype, args);
  auto it = plans_.find(key);
  if (it == plans_.end()) {
    if (context_.recording || !measure_) {
      // Not kept, so that the key is still measured when it can be.
      if (std::find(wanted_.begin(), wanted_.end(), key) == wanted_.end()) wanted_.push_back(key);
      fallback_ = DefaultPlan(args);
      return fallback_;
    }
    MeasureKey(key, args);
    it = plans_.find(key);
  }
  return it->second.plan;
}

absl::StatusOr<bool> LinearRunner::MeasureWanted() {
  while (!wanted_.empty()) {
    const LinearKey key = wanted_.front();
    wanted_.erase(wanted_.begin());
    if (plans_.contains(key)) continue;
    MeasureKey(key, ShapeOf(key));
    return true;
  }
  return false;
}

void LinearRunner::MeasureKey(const LinearKey& key, const GemmArgs& args) {
  MeasuredPlan best = {DefaultPlan(args), 0.0f};
  const auto measurements = Measure(key, key.m_bucket <= kMaxOwnRows);
  if (!measurements.ok()) {
    LogInfo("linear %d x %d for %d rows was not measured: %s",
            key.n,
            key.k,
            key.m_bucket,
            std::string(measurements.status().message()));
  } else {
    for (const LinearTuner::Measurement& m : *measurements) {
      if (!m.status.ok()) continue;
      if (!(m.relative_error <= kMostRelativeError)) {
        LogError("linear %d x %d for %d rows: plan '%s' is wrong by %.3g and is not used",
                 key.n,
                 key.k,
                 key.m_bucket,
                 PlanText(m.plan),
                 m.relative_error);
        continue;
      }
      if (best.time_us == 0.0f || m.time_us < best.time_us) best = {m.plan, m.time_us};
    }
  }
  plans_.insert_or_assign(key, best);
  if (measurements.ok()) {
    const absl::Status written = cache_->Write(plans_);
    if (!written.ok())
      LogWarning("plans of linear are not kept: %s", std::string(written.message()));
  }
}

absl::StatusOr<std::vector<LinearTuner::Measurement>> LinearRunner::MeasureAll(
    const LinearKey& key) {
  return Measure(key, /*has_own=*/true);
}

absl::StatusOr<std::vector<LinearTuner::Measurement>> LinearRunner::Measure(const LinearKey& key,
                                                                            bool has_own) {
  // Workspaces are shared with what the stream still runs.
  PAGODA_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(context_.stream), "cudaStreamSynchronize", "linear"));
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<LinearTuner> tuner,
                          LinearTuner::Create(context_, key));
  const GemmArgs shape = ShapeOf(key);
  std::vector<LinearPlan> candidates;
  PAGODA_ASSIGN_OR_RETURN(const std::vector<LtAlgorithm> algorithms,
                          lt_->Candidates(key.dtype, shape, kNumLtCandidates));
  for (const LtAlgorithm& algorithm : algorithms) candidates.emplace_back(algorithm);
  for (const LinearPlan& plan : OwnCandidates(key.m_bucket)) {
    if (has_own && Fits(shape, plan)) candidates.push_back(plan);
  }
  const LinearPlan reference = algorithms.empty() ? LinearPlan(LtAlgorithm{}) : candidates[0];
  return tuner->Measure(
      reference,
      candidates,
      [this](
          const DeviceContext& context, DType dtype, const GemmArgs& args, const LinearPlan& plan) {
        return RunPlan(context, dtype, args, plan);
      });
}

absl::Status LinearRunner::RunPlan(const DeviceContext& context,
                                   DType dtype,
                                   const GemmArgs& args,
                                   const LinearPlan& plan) {
  if (!Fits(args, plan)) {
    return UnsupportedError(
        "linear",
        absl::StrCat(
            "plan '", PlanText(plan), "' for m = ", args.m, ", n = ", args.n, ", k = ", args.k));
  }
  if (const auto* gemv = std::get_if<GemvConfig>(&plan)) {
    return LaunchGemv(context, *gemv, dtype, args);
  }
  if (const auto* ring = std::get_if<GemvRingConfig>(&plan)) {
    return LaunchGemvRing(context, *ring, dtype, args);
  }
  if (const auto* narrow = std::get_if<NarrowConfig>(&plan)) {
    return LaunchNarrow(context, *narrow, dtype, args);
  }
  const auto& lt = std::get<LtAlgorithm>(plan);
  constexpr LtAlgorithm kNone;
  const bool is_named =
      !std::equal(std::begin(lt.algo.data), std::end(lt.algo.data), std::begin(kNone.algo.data));
  return lt_->Run(context, dtype, args, is_named ? &lt : nullptr);
}

std::optional<LinearPlan> LinearRunner::FusedPlan(DType dtype, const GemmArgs& args) {
  if (args.m > kMaxOwnRows) return std::nullopt;
  const auto fuses = [&](const LinearPlan& plan) {
    const bool takes_transforms =
        std::holds_alternative<GemvRingConfig>(plan) || std::holds_alternative<NarrowConfig>(plan);
    return takes_transforms && Fits(args, plan);
  };
  if (const LinearPlan& plan = PlanFor(dtype, args); fuses(plan)) return plan;
  if (const LinearPlan plan = DefaultPlan(args); fuses(plan)) return plan;
  return std::nullopt;
}

bool LinearRunner::SupportsFused(DType dtype, const GemmArgs& args) {
  return FusedPlan(dtype, args).has_value();
}

absl::Status LinearRunner::RunFused(DType dtype, const GemmArgs& args) {
  const std::optional<LinearPlan> plan = FusedPlan(dtype, args);
  if (!plan.has_value()) {
    return UnsupportedError(
        "fused_linear",
        absl::StrCat("m = ", args.m, ", n = ", args.n, ", k = ", args.k, " with these operands"));
  }
  return RunPlan(context_, dtype, args, *plan);
}

absl::Status LinearRunner::RunFixed(DType dtype, const GemmArgs& args) {
  return RunPlan(context_, dtype, args, DefaultPlan(args));
}

absl::Status LinearRunner::Run(DType dtype, const GemmArgs& args) {
  const LinearPlan& plan = PlanFor(dtype, args);
  if (Fits(args, plan)) return RunPlan(context_, dtype, args, plan);
  // The plan was measured on aligned operands; these are not, or the transform needs another
  // kernel.
  return RunPlan(context_, dtype, args, DefaultPlan(args));
}

}  // namespace pagoda::kernels::cuda
