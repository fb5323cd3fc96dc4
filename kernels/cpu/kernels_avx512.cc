#include "kernels/cpu/kernels_inl.h"

namespace pagoda::kernels::cpu {

const KernelTable& Avx512Kernels() {
  static constexpr KernelTable kTable = MakeTable(Isa::kAvx512);
  return kTable;
}

}  // namespace pagoda::kernels::cpu
