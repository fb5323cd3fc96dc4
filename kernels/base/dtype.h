#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16, kInt32 };

constexpr size_t DTypeBytes(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kInt32 ? 4 : 2;
}

// "float32", "bfloat16", "float16", "int32".
absl::string_view DTypeName(DType dtype);

// REQUIRES: one of the names above; else INVALID_ARGUMENT naming the value and what is supported.
absl::StatusOr<DType> ParseDType(absl::string_view name);

// The upper half of an IEEE float32; conversion rounds to nearest, ties to even.
struct BFloat16 {
  uint16_t bits = 0;

  static BFloat16 FromFloat(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40)};
    return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
  }
  float ToFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE binary16, as a storage type.
struct Float16 {
  uint16_t bits = 0;

  static Float16 FromFloat(float value);
  float ToFloat() const;
};

}  // namespace pagoda
