#include "kernels/cuda/linear/linear_plan.h"

#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"

namespace pagoda::kernels::cuda {
namespace {

// How a plan is written: kind, then its numbers.
struct PlanWords {
  std::string kind;
  std::vector<uint64_t> numbers;
};

PlanWords ToWords(const LinearPlan& plan) {
  const auto number = [](int value) { return static_cast<uint64_t>(value); };
  if (const auto* lt = std::get_if<LtAlgorithm>(&plan)) {
    return {"cublaslt", {std::begin(lt->algo.data), std::end(lt->algo.data)}};
  }
  if (const auto* gemv = std::get_if<GemvConfig>(&plan)) {
    return {"gemv", {number(gemv->rows), number(gemv->depth)}};
  }
  if (const auto* ring = std::get_if<GemvRingConfig>(&plan)) {
    return {"ring", {number(ring->warps), number(ring->stages), number(ring->blocks_per_sm)}};
  }
  const auto& narrow = std::get<NarrowConfig>(plan);
  return {"narrow", {number(narrow.chunk), number(narrow.split)}};
}

absl::StatusOr<LinearPlan> FromWords(const PlanWords& words) {
  const auto number = [&](size_t i) { return static_cast<int>(words.numbers[i]); };
  if (words.kind == "cublaslt") {
    LtAlgorithm lt;
    if (words.numbers.size() == std::size(lt.algo.data)) {
      std::copy(words.numbers.begin(), words.numbers.end(), std::begin(lt.algo.data));
      return lt;
    }
  } else if (words.kind == "gemv" && words.numbers.size() == 2) {
    return GemvConfig{number(0), number(1)};
  } else if (words.kind == "ring" && words.numbers.size() == 3) {
    return GemvRingConfig{number(0), number(1), number(2)};
  } else if (words.kind == "narrow" && words.numbers.size() == 2) {
    return NarrowConfig{number(0), number(1)};
  }
  return absl::InvalidArgumentError(absl::StrCat("plan of unknown kind '", words.kind, "'"));
}

}  // namespace

size_t LinearKeyHash::operator()(const LinearKey& key) const {
  uint64_t hash = 0;
  for (const uint64_t field :
       {static_cast<uint64_t>(key.dtype) * 4 + key.y_is_float * 2u + key.has_bias,
        static_cast<uint64_t>(key.n),
        static_cast<uint64_t>(key.k),
        static_cast<uint64_t>(key.m_bucket)}) {
    hash = (hash ^ field) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

int32_t LinearBucket(int64_t m) {
  if (m <= kMaxGemvRows) return static_cast<int32_t>(m);
  int64_t bucket = 8;
  while (bucket < m) bucket *= 2;
  return static_cast<int32_t>(bucket);
}

std::vector<LinearPlan> OwnCandidates(int32_t m_bucket) {
  std::vector<LinearPlan> plans;
  if (m_bucket <= kMaxGemvRows) {
    plans.insert(plans.end(),
                 {GemvRingConfig{8, 4, 1},
                  GemvRingConfig{8, 6, 1},
                  GemvRingConfig{8, 3, 2},
                  GemvRingConfig{16, 3, 1},
                  GemvRingConfig{4, 8, 1},
                  GemvRingConfig{4, 4, 2},
                  GemvRingConfig{16, 4, 1}});
    plans.insert(plans.end(),
                 {GemvConfig{1, 4}, GemvConfig{1, 8}, GemvConfig{2, 4}, GemvConfig{2, 8}});
  }
  if (m_bucket >= 2 && m_bucket <= kMaxNarrowRows) {
    for (const int split : {1, 2, 4}) {
      for (const int chunk : {512, 1024}) plans.emplace_back(NarrowConfig{chunk, split});
    }
  }
  return plans;
}

std::string PlanText(const LinearPlan& plan) {
  if (const auto* gemv = std::get_if<GemvConfig>(&plan)) {
    return absl::StrCat("gemv rows=", gemv->rows, " depth=", gemv->depth);
  }
  if (const auto* ring = std::get_if<GemvRingConfig>(&plan)) {
    return absl::StrCat(
        "ring warps=", ring->warps, " stages=", ring->stages, " blocks=", ring->blocks_per_sm);
  }
  if (const auto* narrow = std::get_if<NarrowConfig>(&plan)) {
    return absl::StrCat("narrow chunk=", narrow->chunk, " split=", narrow->split);
  }
  return "cublaslt";
}

std::string FormatPlanLine(const LinearKey& key, const MeasuredPlan& plan) {
  std::string line = absl::StrFormat("%s %d %d %d %d %d %.2f",
                                     DTypeName(key.dtype),
                                     key.y_is_float,
                                     key.has_bias,
                                     key.n,
                                     key.k,
                                     key.m_bucket,
                                     plan.time_us);
  const PlanWords words = ToWords(plan.plan);
  absl::StrAppend(&line, " ", words.kind);
  for (const uint64_t number : words.numbers) absl::StrAppend(&line, " ", number);
  return line;
}

absl::StatusOr<std::pair<LinearKey, MeasuredPlan>> ParsePlanLine(absl::string_view line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
  constexpr size_t kNumKeyFields = 8;
  if (fields.size() < kNumKeyFields) {
    return absl::InvalidArgumentError(absl::StrCat("plan line '", line, "' is too short"));
  }
  LinearKey key;
  MeasuredPlan measured;
  int y_is_float = 0;
  int has_bias = 0;
  PAGODA_ASSIGN_OR_RETURN(key.dtype, ParseDType(fields[0]));
  if (!absl::SimpleAtoi(fields[1], &y_is_float) || !absl::SimpleAtoi(fields[2], &has_bias) ||
      !absl::SimpleAtoi(fields[3], &key.n) || !absl::SimpleAtoi(fields[4], &key.k) ||
      !absl::SimpleAtoi(fields[5], &key.m_bucket) ||
      !absl::SimpleAtof(fields[6], &measured.time_us)) {
    return absl::InvalidArgumentError(absl::StrCat("plan line '", line, "' has a bad number"));
  }
  key.y_is_float = y_is_float != 0;
  key.has_bias = has_bias != 0;
  PlanWords words = {std::string(fields[7]), {}};
  for (size_t i = kNumKeyFields; i < fields.size(); ++i) {
    if (!absl::SimpleAtoi(fields[i], &words.numbers.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("plan line '", line, "' has a bad number"));
    }
  }
  PAGODA_ASSIGN_OR_RETURN(measured.plan, FromWords(words));
  return std::make_pair(key, std::move(measured));
}

}  // namespace pagoda::kernels::cuda
