#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/check_runner.h"

namespace pagoda::kernels::cuda {

// Ends the program where a test cannot go on.
inline void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::printf("FAIL setup: %s\n", status.ToString().c_str());
  std::exit(2);
}
template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return std::move(value).value();
}

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float stddev = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, stddev);
  std::vector<float> values(count);
  for (float& v : values) v = normal(generator);
  return values;
}

// Floats in the bits of a 16-bit type.
inline std::vector<uint16_t> Encode(DType dtype, const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    bits[i] = dtype == DType::kBFloat16 ? BFloat16::FromFloat(values[i]).bits
                                        : Float16::FromFloat(values[i]).bits;
  }
  return bits;
}
inline float DecodeOne(DType dtype, uint16_t bits) {
  return dtype == DType::kBFloat16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat();
}
inline std::vector<float> Decode(DType dtype, const std::vector<uint16_t>& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = DecodeOne(dtype, bits[i]);
  return values;
}

template <typename T>
Buffer Upload(Backend& backend, const std::vector<T>& values) {
  Buffer buffer = Must(backend.Allocate(std::max<size_t>(values.size(), 1) * sizeof(T), "test"));
  Must(backend.CopyToDevice(buffer.data(), values.data(), values.size() * sizeof(T)));
  Must(backend.Synchronize());
  return buffer;
}

// Device memory whose every byte is 0xff: NaN in all float types, -1 in int32.
inline Buffer Poisoned(Backend& backend, size_t bytes) {
  return Upload(backend, std::vector<uint8_t>(bytes, 0xff));
}

template <typename T>
std::vector<T> Download(Backend& backend, const void* device, size_t count) {
  std::vector<T> values(count);
  Must(backend.CopyToHost(values.data(), device, count * sizeof(T)));
  Must(backend.Synchronize());
  return values;
}

// ||a - b|| / ||b||; infinite if any is not a number.
inline double RelativeError(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d;
    norm += b[i] * b[i];
  }
  if (!std::isfinite(difference)) return INFINITY;
  return std::sqrt(difference / std::max(norm, 1e-30));
}

// What rounding to a type allows.
inline double Tolerance(DType dtype) {
  if (dtype == DType::kBFloat16) return 4e-3;
  return dtype == DType::kFloat16 ? 5e-4 : 2e-5;
}

inline absl::Status ExpectClose(absl::string_view what,
                                const std::vector<float>& a,
                                const std::vector<double>& b,
                                double tolerance) {
  const double error = RelativeError(a, b);
  if (error <= tolerance) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": relative error ", error, ", expected at most ", tolerance));
}

inline absl::Status ExpectTrue(bool condition, absl::string_view what) {
  return condition ? absl::OkStatus() : absl::InternalError(std::string(what));
}

void RunBackendCases(CheckRunner& runner, CudaBackend& backend);
// After all others: they break the device's context.
void RunFaultCases(CheckRunner& runner, CudaBackend& backend);
void RunElementwiseCases(CheckRunner& runner, CudaBackend& backend);
void RunLayersCases(CheckRunner& runner, CudaBackend& backend);
void RunMoeCases(CheckRunner& runner, CudaBackend& backend);
void RunWeightCases(CheckRunner& runner, CudaBackend& backend);
void RunLinearCases(CheckRunner& runner, CudaBackend& backend);
void RunFusedLinearCases(CheckRunner& runner, CudaBackend& backend);
void RunSampleCases(CheckRunner& runner, CudaBackend& backend);

}  // namespace pagoda::kernels::cuda
