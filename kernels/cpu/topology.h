#pragma once

namespace pagoda::kernels::cpu {

// Physical cores that this process may use: those of its affinity mask, siblings counted once, and
// no more than its control group's quota. At least 1.
int NumUsableCores();

}  // namespace pagoda::kernels::cpu
