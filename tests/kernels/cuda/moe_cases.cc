#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tests/kernels/cuda/device_fixture.h"
#include "tests/reference/layers.h"

namespace pagoda::kernels::cuda {
namespace {

struct MoeShape {
  int64_t rows;
  int32_t num_experts, top_k;
  int64_t k, n;
};

// A routing on the device and on the host.
struct Routed {
  Buffer group_offsets, entry_rows, row_experts, row_entries, row_weights;
  std::vector<int32_t> host_offsets, host_rows, host_experts, host_entries;
  std::vector<float> host_weights;

  ExpertRouting routing() const {
    return {.group_offsets = group_offsets.as<int32_t>(),
            .entry_rows = entry_rows.as<int32_t>(),
            .row_experts = row_experts.as<int32_t>(),
            .row_entries = row_entries.as<int32_t>(),
            .row_weights = row_weights.as<float>()};
  }
};

absl::StatusOr<Routed> Route(CudaBackend& backend,
                             const MoeShape& s,
                             const std::vector<float>& logits,
                             bool normalise) {
  const auto entries = static_cast<size_t>(s.rows * s.top_k);
  Routed routed;
  routed.group_offsets = Poisoned(backend, (s.num_experts + 1) * 4);
  routed.entry_rows = Poisoned(backend, entries * 4);
  routed.row_experts = Poisoned(backend, entries * 4);
  routed.row_entries = Poisoned(backend, entries * 4);
  routed.row_weights = Poisoned(backend, entries * 4);
  const Buffer logits_memory = Upload(backend, logits);
  PAGODA_RETURN_IF_ERROR(backend.RouteExperts({.logits = logits_memory.as<float>(),
                                               .rows = s.rows,
                                               .num_experts = s.num_experts,
                                               .top_k = s.top_k,
                                               .normalise = normalise,
                                               .routing = routed.routing()}));
  routed.host_offsets = Download<int32_t>(backend, routed.group_offsets.data(), s.num_experts + 1);
  routed.host_rows = Download<int32_t>(backend, routed.entry_rows.data(), entries);
  routed.host_experts = Download<int32_t>(backend, routed.row_experts.data(), entries);
  routed.host_entries = Download<int32_t>(backend, routed.row_entries.data(), entries);
  routed.host_weights = Download<float>(backend, routed.row_weights.data(), entries);
  return routed;
}

absl::Status RouteCase(CudaBackend& backend, const MoeShape& s, bool normalise) {
  const auto logits = RandomFloats(s.rows * s.num_experts, 101, 2.0f);
  PAGODA_ASSIGN_OR_RETURN(const Routed routed, Route(backend, s, logits, normalise));
  PAGODA_RETURN_IF_ERROR(ExpectTrue(
      routed.host_offsets[0] == 0 && routed.host_offsets[s.num_experts] == s.rows * s.top_k,
      "first and last offset"));
  std::vector<double> expected_weights;
  for (int64_t r = 0; r < s.rows; ++r) {
    const auto chosen = reference::ChooseExperts(
        {logits.begin() + r * s.num_experts, logits.begin() + (r + 1) * s.num_experts},
        s.top_k,
        normalise);
    for (int32_t j = 0; j < s.top_k; ++j) {
      const int64_t at = r * s.top_k + j;
      const int expert = chosen.experts[j];
      PAGODA_RETURN_IF_ERROR(ExpectTrue(
          routed.host_experts[at] == expert,
          absl::StrFormat(
              "row %d choice %d: expert %d, expected %d", r, j, routed.host_experts[at], expert)));
      const int32_t entry = routed.host_entries[at];
      PAGODA_RETURN_IF_ERROR(
          ExpectTrue(entry >= routed.host_offsets[expert] &&
                         entry < routed.host_offsets[expert + 1] && routed.host_rows[entry] == r,
                     absl::StrFormat("row %d choice %d: entry %d", r, j, entry)));
      expected_weights.push_back(chosen.weights[j]);
    }
  }
  for (int32_t e = 0; e < s.num_experts; ++e) {
    for (int32_t i = routed.host_offsets[e] + 1; i < routed.host_offsets[e + 1]; ++i) {
      PAGODA_RETURN_IF_ERROR(ExpectTrue(routed.host_rows[i - 1] < routed.host_rows[i],
                                        "entries of an expert are in order of rows"));
    }
  }
  return ExpectClose("weights", routed.host_weights, expected_weights, 1e-5);
}

absl::Status GroupedLinearCase(CudaBackend& backend, DType dtype, const MoeShape& s, bool gathers) {
  const auto logits = RandomFloats(s.rows * s.num_experts, 111, 2.0f);
  PAGODA_ASSIGN_OR_RETURN(const Routed routed, Route(backend, s, logits, true));
  const int64_t num_entries = s.rows * s.top_k;
  const auto x = Encode(dtype, RandomFloats((gathers ? s.rows : num_entries) * s.k, 112));
  const auto weight = Encode(dtype, RandomFloats(s.num_experts * s.n * s.k, 113));
  const Buffer x_memory = Upload(backend, x), weight_memory = Upload(backend, weight);
  const Buffer y_memory = Poisoned(backend, num_entries * s.n * 2);
  PAGODA_RETURN_IF_ERROR(backend.GroupedLinear(
      {.x = x_memory.data(),
       .entry_rows = gathers ? routed.entry_rows.as<int32_t>() : nullptr,
       .group_offsets = routed.group_offsets.as<int32_t>(),
       .weight = {.dtype = dtype, .data = weight_memory.data(), .n = s.num_experts * s.n, .k = s.k},
       .num_groups = s.num_experts,
       .y = y_memory.data(),
       .num_entries = num_entries,
       .x_stride = s.k,
       .dtype = dtype}));
  std::vector<double> expected;
  int32_t expert = 0;
  for (int64_t i = 0; i < num_entries; ++i) {
    while (routed.host_offsets[expert + 1] <= i) ++expert;
    const int64_t row = gathers ? routed.host_rows[i] : i;
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      const int64_t w = (expert * s.n + j) * s.k;
      for (int64_t l = 0; l < s.k; ++l) {
        sum += static_cast<double>(DecodeOne(dtype, x[row * s.k + l])) *
               static_cast<double>(DecodeOne(dtype, weight[w + l]));
      }
      expected.push_back(sum);
    }
  }
  return ExpectClose("y",
                     Decode(dtype, Download<uint16_t>(backend, y_memory.data(), expected.size())),
                     expected,
                     Tolerance(dtype));
}

absl::Status CombineCase(CudaBackend& backend, DType dtype, const MoeShape& s, bool adds) {
  const auto logits = RandomFloats(s.rows * s.num_experts, 121, 2.0f);
  PAGODA_ASSIGN_OR_RETURN(const Routed routed, Route(backend, s, logits, true));
  const auto x = Encode(dtype, RandomFloats(s.rows * s.top_k * s.n, 122));
  const auto y = Encode(dtype, RandomFloats(s.rows * s.n, 123));
  const Buffer x_memory = Upload(backend, x), y_memory = Upload(backend, y);
  PAGODA_RETURN_IF_ERROR(backend.CombineExperts({.x = x_memory.data(),
                                                 .row_entries = routed.row_entries.as<int32_t>(),
                                                 .row_weights = routed.row_weights.as<float>(),
                                                 .y = y_memory.data(),
                                                 .rows = s.rows,
                                                 .width = s.n,
                                                 .top_k = s.top_k,
                                                 .dtype = dtype,
                                                 .adds = adds}));
  std::vector<double> expected;
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t i = 0; i < s.n; ++i) {
      double sum = adds ? static_cast<double>(DecodeOne(dtype, y[r * s.n + i])) : 0.0;
      for (int32_t j = 0; j < s.top_k; ++j) {
        const int64_t at = r * s.top_k + j;
        sum += static_cast<double>(routed.host_weights[at]) *
               static_cast<double>(DecodeOne(dtype, x[routed.host_entries[at] * s.n + i]));
      }
      expected.push_back(sum);
    }
  }
  return ExpectClose("y",
                     Decode(dtype, Download<uint16_t>(backend, y_memory.data(), expected.size())),
                     expected,
                     Tolerance(dtype));
}

}  // namespace

void RunMoeCases(CheckRunner& runner, CudaBackend& backend) {
  for (const MoeShape s : {MoeShape{1, 1, 1, 0, 0},
                           MoeShape{3, 8, 2, 0, 0},
                           MoeShape{64, 128, 8, 0, 0},
                           MoeShape{2000, 128, 8, 0, 0},
                           MoeShape{50, 40, 40, 0, 0},
                           MoeShape{9, 600, 4, 0, 0}}) {
    for (const bool normalise : {false, true}) {
      runner.Run(absl::StrFormat("route_experts/%d/%d_of_%d%s",
                                 s.rows,
                                 s.top_k,
                                 s.num_experts,
                                 normalise ? "/normalised" : ""),
                 [&] { return RouteCase(backend, s, normalise); });
    }
  }
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const std::string type(DTypeName(dtype));
    for (const MoeShape s : {MoeShape{1, 8, 2, 128, 256},
                             MoeShape{5, 8, 2, 256, 128},
                             MoeShape{64, 16, 8, 512, 192},
                             MoeShape{300, 8, 2, 128, 512},  // 64 entries a tile
                             MoeShape{300, 4, 2, 200, 70},   // edges of k and n
                             MoeShape{7, 128, 8, 72, 66},
                             MoeShape{6, 4, 2, 33, 31}}) {  // neither vectors nor pairs
      for (const bool gathers : {true, false}) {
        runner.Run(absl::StrFormat("grouped_linear/%s/%d/%d_of_%d/%dx%d%s",
                                   type,
                                   s.rows,
                                   s.top_k,
                                   s.num_experts,
                                   s.k,
                                   s.n,
                                   gathers ? "/gathers" : ""),
                   [&] { return GroupedLinearCase(backend, dtype, s, gathers); });
      }
    }
    for (const MoeShape s : {MoeShape{1, 8, 2, 0, 4096}, MoeShape{70, 16, 8, 0, 37}}) {
      for (const bool adds : {true, false}) {
        runner.Run(absl::StrFormat(
                       "combine_experts/%s/%dx%d%s", type, s.rows, s.n, adds ? "" : "/anew"),
                   [&] { return CombineCase(backend, dtype, s, adds); });
      }
    }
  }
}

}  // namespace pagoda::kernels::cuda
