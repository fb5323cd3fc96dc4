#include "tests/reference/layers.h"

#include <cmath>

namespace pagoda::reference {

std::vector<double> Linear(const std::vector<double>& weight, const std::vector<double>& x) {
  const size_t k = x.size();
  std::vector<double> y(weight.size() / k, 0.0);
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t j = 0; j < k; ++j) y[i] += weight[i * k + j] * x[j];
  }
  return y;
}

std::vector<double> RmsNorm(const std::vector<double>& x,
                            const std::vector<double>& weight,
                            double epsilon,
                            double weight_offset) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double factor = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * (weight[i] + weight_offset);
  return y;
}

std::vector<double> SiluMul(const std::vector<double>& gate_up) {
  const size_t width = gate_up.size() / 2;
  std::vector<double> y(width);
  for (size_t i = 0; i < width; ++i)
    y[i] = gate_up[i] / (1.0 + std::exp(-gate_up[i])) * gate_up[width + i];
  return y;
}

}  // namespace pagoda::reference
