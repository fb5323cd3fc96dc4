#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace pagoda::kernels {

// What a test runs on: each instruction set this processor has, and the best one with several
// threads.
struct BackendCase {
  std::string isa;
  int threads = 1;
};

inline std::vector<BackendCase> AllBackendCases() {
  std::vector<BackendCase> cases;
  for (const char* isa : {"scalar", "avx2", "avx512", "avx512_bf16"}) {
    if (OpenBackend("cpu", {.cpu_threads = 1, .cpu_isa = isa}).ok()) cases.push_back({isa, 1});
  }
  cases.push_back({cases.back().isa, 3});
  return cases;
}

inline std::string BackendCaseName(const testing::TestParamInfo<BackendCase>& info) {
  return info.param.isa + "_" + std::to_string(info.param.threads);
}

inline std::unique_ptr<Backend> OpenForTest(const BackendCase& backend_case) {
  auto backend =
      OpenBackend("cpu", {.cpu_threads = backend_case.threads, .cpu_isa = backend_case.isa});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return std::move(backend).value();
}

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float stddev = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, stddev);
  std::vector<float> values(count);
  for (float& v : values) v = normal(generator);
  return values;
}

inline float RoundTo(DType dtype, float value) {
  return dtype == DType::kBFloat16 ? BFloat16::FromFloat(value).ToFloat() : value;
}

inline void RoundAll(DType dtype, std::vector<float>* values) {
  for (float& v : *values) v = RoundTo(dtype, v);
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A weight in the backend's own format, packed from row-major floats.
struct PackedWeight {
  Buffer memory;
  LinearWeight weight;
};

inline PackedWeight Pack(
    Backend& backend, const std::vector<float>& values, int64_t n, int64_t k, DType dtype) {
  PackedWeight packed;
  packed.weight = {.format = backend.PreferredFormat(dtype, n, k), .dtype = dtype, .n = n, .k = k};
  packed.memory =
      std::move(backend.Allocate(backend.LinearBytes(packed.weight), "test weight")).value();
  packed.weight.data = packed.memory.data();
  const absl::Status status = backend.PackLinear({.weight = packed.weight,
                                                  .source = values.data(),
                                                  .source_dtype = DType::kFloat32,
                                                  .rows = n});
  EXPECT_TRUE(status.ok()) << status;
  return packed;
}

}  // namespace pagoda::kernels
