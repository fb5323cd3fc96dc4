#include "tests/reference/layers.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

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

std::vector<double> LayerNorm(const std::vector<double>& x,
                              const std::vector<double>& weight,
                              const std::vector<double>& bias,
                              double epsilon) {
  const double width = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  for (const double v : x) mean += v / width;
  for (const double v : x) variance += (v - mean) * (v - mean) / width;
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - mean) / std::sqrt(variance + epsilon) * weight[i];
    if (!bias.empty()) y[i] += bias[i];
  }
  return y;
}

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

double Gelu(double x) { return x * 0.5 * std::erfc(-x / std::numbers::sqrt2); }

double GeluTanh(double x) {
  const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(inner));
}

ChosenExperts ChooseExperts(const std::vector<double>& logits, int top_k, bool normalise) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  double sum = 0, chosen_sum = 0;
  for (const double logit : logits) sum += std::exp(logit - logits[order[0]]);
  ChosenExperts chosen;
  for (int j = 0; j < top_k; ++j) {
    chosen.experts.push_back(order[j]);
    chosen.weights.push_back(std::exp(logits[order[j]] - logits[order[0]]) / sum);
    chosen_sum += chosen.weights.back();
  }
  if (normalise) {
    for (double& weight : chosen.weights) weight /= chosen_sum;
  }
  return chosen;
}

std::vector<double> SiluMul(const std::vector<double>& gate_up) {
  const size_t width = gate_up.size() / 2;
  std::vector<double> y(width);
  for (size_t i = 0; i < width; ++i)
    y[i] = gate_up[i] / (1.0 + std::exp(-gate_up[i])) * gate_up[width + i];
  return y;
}

}  // namespace pagoda::reference
