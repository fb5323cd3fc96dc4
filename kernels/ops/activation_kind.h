#pragma once

#include <cstdint>

namespace pagoda::kernels {

// Apart from activation.h, so that files compiled for one instruction set can include it.
enum class Activation : uint8_t {
  kSilu,      // x / (1 + e^-x)
  kGelu,      // x * Phi(x), Phi by the error function
  kGeluTanh,  // x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
};

}  // namespace pagoda::kernels
