#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/linear/gemv.h"
#include "kernels/cuda/linear/lt_gemm.h"
#include "kernels/cuda/linear/narrow.h"

namespace pagoda::kernels::cuda {

// Which kernel computes a product, and how.
using LinearPlan = std::variant<LtAlgorithm, GemvConfig, GemvRingConfig, NarrowConfig>;

// What a plan is chosen by. One plan serves all m of a bucket.
struct LinearKey {
  DType dtype = DType::kBFloat16;
  bool y_is_float = false;
  bool has_bias = false;  // cuBLASLt's algorithms differ
  int32_t n = 0;
  int32_t k = 0;
  int32_t m_bucket = 0;

  bool operator==(const LinearKey&) const = default;
};

struct LinearKeyHash {
  size_t operator()(const LinearKey& key) const;
};

// 1, 2, 3, 4, then the next power of two: where kernels change, m is exact; beyond, times grow with
// m and the ranking of algorithms hardly moves within a factor of two.
int32_t LinearBucket(int64_t m);

// A measured choice.
struct MeasuredPlan {
  LinearPlan plan;
  float time_us = 0.0f;
};

using LinearPlanTable = std::unordered_map<LinearKey, MeasuredPlan, LinearKeyHash>;

// Our own kernels worth measuring for a bucket, without regard to whether they fit.
std::vector<LinearPlan> OwnCandidates(int32_t m_bucket);

// "ring warps=8 stages=4 blocks=1", for logs, benchmarks and files.
std::string PlanText(const LinearPlan& plan);

// One line of a plan file, and back. Lines of another make are an INVALID_ARGUMENT.
std::string FormatPlanLine(const LinearKey& key, const MeasuredPlan& plan);
absl::StatusOr<std::pair<LinearKey, MeasuredPlan>> ParsePlanLine(absl::string_view line);

}  // namespace pagoda::kernels::cuda
