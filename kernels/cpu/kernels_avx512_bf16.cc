#include "kernels/cpu/kernels_inl.h"

namespace pagoda::kernels::cpu {

const KernelTable& Avx512Bf16Kernels() {
  static constexpr KernelTable kTable = MakeTable(Isa::kAvx512Bf16);
  return kTable;
}

}  // namespace pagoda::kernels::cpu
