#include "tests/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pagoda::reference {

std::vector<double> Attend(const AttentionRow& row) {
  const auto context = static_cast<int64_t>(row.keys.size());
  const size_t d = row.q.size();
  std::vector<double> scores(context);
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < context; ++j) {
    double dot = 0;
    for (size_t i = 0; i < d; ++i) dot += row.q[i] * row.keys[j][i];
    double score = dot * row.scale;
    if (row.soft_cap > 0) score = row.soft_cap * std::tanh(score / row.soft_cap);
    scores[j] = score + row.alibi_slope * static_cast<double>(j - (context - 1));
    max = std::max(max, scores[j]);
  }
  double sum = 0;
  std::vector<double> out(d, 0.0);
  for (int64_t j = 0; j < context; ++j) {
    const double weight = std::exp(scores[j] - max);
    sum += weight;
    for (size_t i = 0; i < d; ++i) out[i] += weight * row.values[j][i];
  }
  for (double& v : out) v /= sum;
  return out;
}

void Rotate(const double* cos, const double* sin, int64_t rotary_dim, std::vector<double>* head) {
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double a = (*head)[i];
    const double b = (*head)[i + half];
    (*head)[i] = a * cos[i] - b * sin[i];
    (*head)[i + half] = b * cos[i] + a * sin[i];
  }
}

}  // namespace pagoda::reference
