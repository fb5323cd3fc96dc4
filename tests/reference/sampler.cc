#include "tests/reference/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace pagoda::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Philox-4x32-7 after the paper, apart from the one that is tested.
std::vector<uint32_t> Philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi) {
  std::vector<uint32_t> c = {static_cast<uint32_t>(counter_lo),
                             static_cast<uint32_t>(counter_lo >> 32),
                             static_cast<uint32_t>(counter_hi),
                             static_cast<uint32_t>(counter_hi >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 7; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0,
         static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1,
         static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

std::vector<double> Softmax(const std::vector<double>& logits) {
  std::vector<double> p = LogSoftmax(logits);
  for (double& v : p) v = std::exp(v);
  return p;
}

// Drops what comes after the shortest prefix of `order` whose probability reaches `target`.
void KeepMass(const std::vector<int32_t>& order,
              const std::vector<double>& p,
              double target,
              std::vector<double>* logits) {
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && sum >= target) (*logits)[order[i]] = kMinusInfinity;
    sum += p[order[i]];
  }
}

std::vector<int32_t> Kept(const std::vector<double>& logits) {
  std::vector<int32_t> ids;
  for (const int32_t id : Ranking(logits)) {
    if (logits[id] > kMinusInfinity) ids.push_back(id);
  }
  return ids;
}

// Logits after all filters.
std::vector<double> Filtered(const std::vector<double>& logits, const SamplerRow& row) {
  std::vector<double> z = ProcessedLogits(logits, row);
  const double max = *std::max_element(z.begin(), z.end());
  if (row.temperature == 0) {
    const int32_t best = Ranking(z)[0];
    std::fill(z.begin(), z.end(), kMinusInfinity);
    z[best] = 0;
    return z;
  }
  for (double& v : z) v = (v - max) / row.temperature;
  if (row.min_p > 0) {
    for (double& v : z) v = v < std::log(row.min_p) ? kMinusInfinity : v;
  }
  if (row.top_k > 0) {
    const std::vector<int32_t> order = Ranking(z);
    for (size_t i = row.top_k; i < order.size(); ++i) z[order[i]] = kMinusInfinity;
  }
  if (row.top_p < 1) KeepMass(Kept(z), Softmax(z), row.top_p, &z);
  if (row.typical_p < 1) {
    const std::vector<double> p = Softmax(z);
    double entropy = 0;
    for (const double v : p) entropy -= v > 0 ? v * std::log(v) : 0.0;
    std::vector<int32_t> order = Kept(z);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const double da = std::abs(-std::log(p[a]) - entropy),
                   db = std::abs(-std::log(p[b]) - entropy);
      return da != db ? da < db : a < b;
    });
    KeepMass(order, p, row.typical_p, &z);
  }
  return z;
}

}  // namespace

std::vector<int32_t> Ranking(const std::vector<double>& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(
      order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return order;
}

std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double v : logits) sum += std::exp(v - max);
  std::vector<double> out(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) out[i] = logits[i] - max - std::log(sum);
  return out;
}

std::vector<double> ProcessedLogits(const std::vector<double>& logits, const SamplerRow& row) {
  std::vector<double> z = logits;
  if (!row.allowed.empty()) {
    std::fill(z.begin(), z.end(), kMinusInfinity);
    for (const int32_t id : row.allowed) z[id] = logits[id];
  }
  for (const int32_t id : row.masked) z[id] = kMinusInfinity;
  for (const auto& [id, value] : row.bias) z[id] += value;
  for (const auto& [id, output_count] : row.penalties) {
    z[id] = z[id] > 0 ? z[id] / row.repetition_penalty : z[id] * row.repetition_penalty;
    z[id] -= output_count * row.frequency_penalty;
    if (output_count > 0) z[id] -= row.presence_penalty;
  }
  return z;
}

std::vector<double> Distribution(const std::vector<double>& logits, const SamplerRow& row) {
  return Softmax(Filtered(logits, row));
}

std::vector<double> NoisyLogits(const std::vector<double>& logits, const SamplerRow& row) {
  std::vector<double> z = Filtered(logits, row);
  for (size_t id = 0; id < z.size(); ++id) {
    if (z[id] == kMinusInfinity) continue;
    const std::vector<uint32_t> words =
        Philox(row.seed, static_cast<uint64_t>(row.position), id / 4);
    const double uniform = ((words[id % 4] >> 9) + 0.5) / 8388608.0;
    z[id] -= std::log(-std::log(uniform));
  }
  return z;
}

}  // namespace pagoda::reference
