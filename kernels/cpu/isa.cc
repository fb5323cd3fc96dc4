#include "kernels/cpu/isa.h"

#include "absl/strings/str_cat.h"

namespace pagoda::kernels::cpu {

absl::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

Isa DetectIsa() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kScalar;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
#else
  return Isa::kScalar;
#endif
}

absl::StatusOr<Isa> ParseIsa(absl::string_view name) {
  const Isa best = DetectIsa();
  if (name == "auto" || name.empty()) return best;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (name != IsaName(isa)) continue;
    if (isa <= best) return isa;
    return absl::FailedPreconditionError(
        absl::StrCat("cpu_isa is ", name, "; this processor supports up to ", IsaName(best)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cpu_isa is '", name, "'; expected auto, scalar, avx2, avx512 or avx512_bf16"));
}

}  // namespace pagoda::kernels::cpu
