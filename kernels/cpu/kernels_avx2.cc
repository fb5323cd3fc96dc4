#include "kernels/cpu/kernels_inl.h"

namespace pagoda::kernels::cpu {

const KernelTable& Avx2Kernels() {
  static constexpr KernelTable kTable = MakeTable(Isa::kAvx2);
  return kTable;
}

}  // namespace pagoda::kernels::cpu
