#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/normal.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace pagoda::kernels::cuda {
namespace {

absl::Status FillNormalCase(
    CudaBackend& backend, DType dtype, int64_t n, int64_t k, int64_t offset) {
  const Buffer memory = Poisoned(backend, n * k * 2 + 64);
  const LinearWeight weight = {.dtype = dtype, .data = memory.data(), .n = n, .k = k};
  PAGODA_RETURN_IF_ERROR(backend.FillNormal(
      {.weight = weight, .stddev = 0.02f, .seed = 1234567890123u, .element_offset = offset}));
  const auto bits = Download<uint16_t>(backend, memory.data(), n * k + 32);
  std::vector<float> got;
  std::vector<double> expected;
  std::mt19937 generator(5);
  double sum = 0.0, squares = 0.0;
  for (int64_t i = 0; i < n * k; ++i) {
    const double v = DecodeOne(dtype, bits[i]);
    sum += v;
    squares += v * v;
    if (n * k > 100000 && generator() % 64 != 0 && i > 1000 && i < n * k - 1000) continue;
    got.push_back(static_cast<float>(v));
    expected.push_back(0.02 * NormalFromPhilox(1234567890123u, offset + i));
  }
  PAGODA_RETURN_IF_ERROR(ExpectClose("elements", got, expected, Tolerance(dtype)));
  for (int64_t i = n * k; i < n * k + 32; ++i) {
    PAGODA_RETURN_IF_ERROR(ExpectTrue(bits[i] == 0xffff, "written beyond the end"));
  }
  const double count = static_cast<double>(n * k);
  const double stddev = std::sqrt(squares / count);
  return ExpectTrue(count < 10000 || (std::abs(sum / count) < 0.02 * 5 / std::sqrt(count) &&
                                      std::abs(stddev / 0.02 - 1.0) < 5 / std::sqrt(2 * count)),
                    absl::StrCat("mean ", sum / count, ", deviation ", stddev));
}

// Columns of some rows of a larger matrix, in the middle of a weight whose other rows stay.
absl::Status FillBlockCase(CudaBackend& backend, DType dtype, int64_t k, int64_t row_stride) {
  constexpr int64_t kRows = 45, kFirst = 5, kCount = 33, kOffset = 8 * 101 + 16;
  const Buffer memory = Poisoned(backend, kRows * k * 2);
  PAGODA_RETURN_IF_ERROR(backend.FillNormal(
      {.weight = {.dtype = dtype, .data = memory.data(), .n = kRows, .k = k},
       .seed = 9,
       .element_offset = kOffset,
       .row_stride = row_stride,
       .row_offset = kFirst,
       .rows = kCount}));
  const auto bits = Download<uint16_t>(backend, memory.data(), kRows * k);
  std::vector<float> got;
  std::vector<double> expected;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t j = 0; j < k; ++j) {
      if (row < kFirst || row >= kFirst + kCount) {
        PAGODA_RETURN_IF_ERROR(ExpectTrue(bits[row * k + j] == 0xffff, "written in another row"));
        continue;
      }
      got.push_back(DecodeOne(dtype, bits[row * k + j]));
      expected.push_back(0.02 *
                         NormalFromPhilox(9, kOffset + (row - kFirst) * row_stride + j));
    }
  }
  return ExpectClose("elements", got, expected, Tolerance(dtype));
}

absl::Status PackLinearCase(
    CudaBackend& backend, DType from, DType to, int64_t rows, int64_t k, bool pinned) {
  const int64_t n = rows + 5;
  const auto floats = RandomFloats(rows * k, 51, 0.1f);
  const size_t bytes = floats.size() * DTypeBytes(from);
  std::vector<uint8_t> pageable(bytes);
  if (from == DType::kFloat32) {
    std::memcpy(pageable.data(), floats.data(), bytes);
  } else {
    const auto encoded = Encode(from, floats);
    std::memcpy(pageable.data(), encoded.data(), bytes);
  }
  Buffer host = Must(backend.AllocateHost(bytes, "test"));
  std::memcpy(host.data(), pageable.data(), bytes);
  const Buffer memory = Poisoned(backend, n * k * 2);
  const LinearWeight weight = {.dtype = to, .data = memory.data(), .n = n, .k = k};
  PAGODA_RETURN_IF_ERROR(backend.PackLinear({.weight = weight,
                                             .source = pinned ? host.data() : pageable.data(),
                                             .source_dtype = from,
                                             .rows = rows,
                                             .row_offset = 2}));
  if (!pinned) std::fill(pageable.begin(), pageable.end(), 0);  // free to change at once
  const auto bits = Download<uint16_t>(backend, memory.data(), n * k);
  for (int64_t i = 0; i < n * k; ++i) {
    const int64_t at = i - 2 * k;
    if (at < 0 || at >= rows * k) {
      PAGODA_RETURN_IF_ERROR(ExpectTrue(bits[i] == 0xffff, "written outside its rows"));
      continue;
    }
    const float rounded =
        from == DType::kFloat32 ? floats[at] : DecodeOne(from, Encode(from, {floats[at]})[0]);
    if (bits[i] != Encode(to, {rounded})[0]) {
      return absl::InternalError(
          absl::StrCat("element ", at, " is ", DecodeOne(to, bits[i]), ", expected ", rounded));
    }
  }
  return absl::OkStatus();
}

// Printed, not asserted: 8B parameters take well under a second, 16 GB travel at the speed of PCIe.
absl::Status Speed(CudaBackend& backend) {
  const auto seconds = [](auto&& fn) {
    const auto begin = std::chrono::steady_clock::now();
    fn();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  constexpr int64_t kN = 65536, kK = 16384;  // 2 GB
  const Buffer memory = Must(backend.Allocate(kN * kK * 2, "test"));
  const LinearWeight weight = {.dtype = DType::kBFloat16, .data = memory.data(), .n = kN, .k = kK};
  const auto fill = [&] {
    Must(backend.FillNormal({.weight = weight, .seed = 1}));
    Must(backend.Synchronize());
  };
  fill();
  const double fill_s = seconds(fill);
  std::vector<uint8_t> source(size_t{1} << 30, 1);
  Buffer pinned = Must(backend.AllocateHost(size_t{1} << 30, "test"));
  const auto pack = [&](const void* from) {
    Must(backend.PackLinear({.weight = weight, .source = from, .rows = kN / 2}));
    Must(backend.Synchronize());
  };
  pack(source.data());
  const double pageable_s = seconds([&] { pack(source.data()); });
  const double pinned_s = seconds([&] { pack(pinned.data()); });
  std::printf(
      "     fill_normal %.1f G elements/s; pack_linear %.1f GB/s from pageable, %.1f GB/s from "
      "pinned memory\n",
      kN * kK / fill_s / 1e9,
      1.074 / pageable_s,
      1.074 / pinned_s);
  return absl::OkStatus();
}

}  // namespace

void RunWeightCases(CheckRunner& runner, CudaBackend& backend) {
  for (const DType to : {DType::kBFloat16, DType::kFloat16}) {
    const std::string name(DTypeName(to));
    for (const int64_t offset : {0, 4096, 6, 12345}) {
      runner.Run(absl::StrFormat("fill_normal/%s/37x29@%d", name, offset),
                 [&] { return FillNormalCase(backend, to, 37, 29, offset); });
    }
    for (const auto& [k, stride] : {std::pair<int64_t, int64_t>{64, 64}, {64, 256}, {40, 101}}) {
      runner.Run(absl::StrFormat("fill_normal/%s/block/%d_of_%d", name, k, stride),
                 [&, k = k, stride = stride] { return FillBlockCase(backend, to, k, stride); });
    }
    runner.Run(absl::StrFormat("fill_normal/%s/2048x1024", name),
               [&] { return FillNormalCase(backend, to, 2048, 1024, int64_t{1} << 33); });
    for (const DType from : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const bool pinned : {false, true}) {
        const std::string kind = absl::StrCat(DTypeName(from), "-", name, pinned ? "/pinned" : "");
        runner.Run(absl::StrCat("pack_linear/", kind, "/9x33"),
                   [&] { return PackLinearCase(backend, from, to, 9, 33, pinned); });
        // Several slots and a part of one.
        runner.Run(absl::StrCat("pack_linear/", kind, "/5000x2049"),
                   [&] { return PackLinearCase(backend, from, to, 5000, 2049, pinned); });
      }
    }
  }
  runner.Run("weights/speed", [&] { return Speed(backend); });
}

}  // namespace pagoda::kernels::cuda
