#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::engine {

// Element types of the format. Weights are F32, F16 or BF16; a file may hold tensors of the others
// that nobody reads.
enum class TensorType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
  kC64,
};

// The name in the file, such as "BF16".
absl::string_view TensorTypeName(TensorType type);

// One tensor of a safetensors file; its bytes lie within the file's data, which starts after the
// header.
struct SafetensorsEntry {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  uint64_t data_begin = 0;  // from the start of the data
  uint64_t data_end = 0;
};

// The format's own limit; it bounds what a hostile length can make us allocate.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
// Bytes before the header: its length, little endian.
inline constexpr uint64_t kSafetensorsPrefixBytes = 8;
inline constexpr size_t kMaxTensorRank = 8;

// Length of the header from the first eight bytes of a file of `file_bytes`.
// Messages of both functions are without the file's name.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view prefix, uint64_t file_bytes);

// Parses a header and checks it against the `data_bytes` after it: every range lies within the
// data, agrees with shape and type, and the ranges cover the data without gap or overlap. DATA_LOSS
// when the data is shorter than the header says, else INVALID_ARGUMENT. Entries come in order of
// their data.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view header,
                                                                     uint64_t data_bytes);

}  // namespace pagoda::engine
