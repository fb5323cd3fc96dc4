#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::kernels::cpu {

// Instruction sets that kernels are compiled for, weakest first. kScalar is the baseline of the
// build (SSE2 on x86-64).
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16 };

// "scalar", "avx2", "avx512", "avx512_bf16".
absl::string_view IsaName(Isa isa);

// The best one that this processor and its operating system support.
Isa DetectIsa();

// "auto" is DetectIsa(); a name that is unknown, or that this processor cannot run, is an error
// naming both.
absl::StatusOr<Isa> ParseIsa(absl::string_view name);

}  // namespace pagoda::kernels::cpu
