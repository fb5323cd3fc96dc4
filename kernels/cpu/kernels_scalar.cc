#include "kernels/cpu/kernels_inl.h"

namespace pagoda::kernels::cpu {

const KernelTable& ScalarKernels() {
  static constexpr KernelTable kTable = MakeTable(Isa::kScalar);
  return kTable;
}

}  // namespace pagoda::kernels::cpu
