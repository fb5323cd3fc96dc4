#pragma once

#include <cstdint>
#include <vector>

// The other ops of a transformer layer, one row at a time, in double precision.

namespace pagoda::reference {

// weight is row-major [n, k]; returns [n].
std::vector<double> Linear(const std::vector<double>& weight, const std::vector<double>& x);

std::vector<double> RmsNorm(const std::vector<double>& x,
                            const std::vector<double>& weight,
                            double epsilon,
                            double weight_offset);

// gate_up is [2 * width]; returns [width].
std::vector<double> SiluMul(const std::vector<double>& gate_up);

}  // namespace pagoda::reference
