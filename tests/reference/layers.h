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

// `bias` may be empty.
std::vector<double> LayerNorm(const std::vector<double>& x,
                              const std::vector<double>& weight,
                              const std::vector<double>& bias,
                              double epsilon);

double Silu(double x);
double Gelu(double x);      // by the error function
double GeluTanh(double x);  // its usual approximation

// A row's experts, best first (the lower id on ties), and their weights.
struct ChosenExperts {
  std::vector<int> experts;
  std::vector<double> weights;
};
ChosenExperts ChooseExperts(const std::vector<double>& logits, int top_k, bool normalise);

// gate_up is [2 * width]; returns [width].
std::vector<double> SiluMul(const std::vector<double>& gate_up);

}  // namespace pagoda::reference
