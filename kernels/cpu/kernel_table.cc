#include "kernels/cpu/kernel_table.h"

namespace pagoda::kernels::cpu {

const KernelTable& KernelsFor(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kScalar:
      return ScalarKernels();
    case Isa::kAvx2:
      return Avx2Kernels();
    case Isa::kAvx512:
      return Avx512Kernels();
    case Isa::kAvx512Bf16:
      return Avx512Bf16Kernels();
  }
#endif
  return ScalarKernels();
}

}  // namespace pagoda::kernels::cpu
