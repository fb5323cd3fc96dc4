#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/ops.h"
#include "kernels/ops/philox.h"

namespace pagoda::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Candidate {
  float z;
  int32_t id;
};

// The published order: higher logit first, lower id on ties.
bool Before(const Candidate& a, const Candidate& b) {
  return a.z > b.z || (a.z == b.z && a.id < b.id);
}

float Gumbel(const SampleRow& row, int32_t token) {
  const PhiloxBlock block =
      Philox4x32(row.seed, static_cast<uint64_t>(row.position), static_cast<uint64_t>(token / 4));
  return -std::log(-std::log(UniformFromBits(block.word[token % 4])));
}

// Logits after masks, bias and penalties.
void Process(const SampleParams& params, const SampleRow& row, std::vector<float>* z) {
  const auto in_vocab = [&](int32_t id) { return id >= 0 && id < params.vocab_size; };
  if (row.allowed_begin < row.allowed_end) {
    std::vector<float> only(z->size(), kMinusInfinity);
    for (int32_t i = row.allowed_begin; i < row.allowed_end; ++i) {
      if (in_vocab(params.allowed_ids[i]))
        only[params.allowed_ids[i]] = (*z)[params.allowed_ids[i]];
    }
    z->swap(only);
  }
  for (int32_t i = row.masked_begin; i < row.masked_end; ++i) {
    if (in_vocab(params.masked_ids[i])) (*z)[params.masked_ids[i]] = kMinusInfinity;
  }
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i) {
    if (in_vocab(params.bias_ids[i])) (*z)[params.bias_ids[i]] += params.bias_values[i];
  }
  for (int32_t i = row.penalty_begin; i < row.penalty_end; ++i) {
    const PenaltyEntry& entry = params.penalties[i];
    if (!in_vocab(entry.token)) continue;
    float& v = (*z)[entry.token];
    v = v > 0 ? v / row.repetition_penalty : v * row.repetition_penalty;
    v -= static_cast<float>(entry.output_count) * row.frequency_penalty;
    if (entry.output_count > 0) v -= row.presence_penalty;
  }
}

// Keeps the shortest prefix whose mass reaches `target` of the total.
template <typename Mass>
void KeepMass(std::vector<Candidate>* kept, double target, Mass mass) {
  double total = 0;
  for (const Candidate& c : *kept) total += mass(c);
  double sum = 0;
  size_t count = 0;
  while (count < kept->size() && (count == 0 || sum < target * total))
    sum += mass((*kept)[count++]);
  kept->resize(count);
}

int32_t Draw(const SampleRow& row, const std::vector<float>& z, float max) {
  std::vector<Candidate> kept;
  for (size_t i = 0; i < z.size(); ++i) {
    if (z[i] > kMinusInfinity)
      kept.push_back({(z[i] - max) / row.temperature, static_cast<int32_t>(i)});
  }
  const auto mass = [](const Candidate& c) { return std::exp(static_cast<double>(c.z)); };
  if (row.min_p > 0) {
    const float floor = std::log(row.min_p);
    std::erase_if(kept, [&](const Candidate& c) { return c.z < floor; });
  }
  const bool sorts = row.top_k > 0 || row.top_p < 1 || row.typical_p < 1;
  if (sorts) std::sort(kept.begin(), kept.end(), Before);
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < kept.size()) kept.resize(row.top_k);
  if (row.top_p < 1) KeepMass(&kept, row.top_p, mass);
  if (row.typical_p < 1) {
    double total = 0;
    double weighted = 0;
    for (const Candidate& c : kept) total += mass(c);
    for (const Candidate& c : kept) weighted += c.z > kMinusInfinity ? mass(c) * c.z : 0.0;
    // |-log p - H| with log p = z - log total and H = log total - E[z].
    const double mean = weighted / total;
    std::stable_sort(kept.begin(), kept.end(), [&](const Candidate& a, const Candidate& b) {
      return std::abs(a.z - mean) < std::abs(b.z - mean);
    });
    KeepMass(&kept, row.typical_p, mass);
  }
  Candidate best = {kMinusInfinity, kNonFinite};
  for (const Candidate& c : kept) {
    const Candidate noisy = {c.z + Gumbel(row, c.id), c.id};
    if (best.id < 0 || Before(noisy, best)) best = noisy;
  }
  return best.id;
}

void Score(const SampleParams& params,
           int64_t i,
           int32_t token,
           const float* z,
           float inverse_temperature) {
  const SampleRow& row = params.row_params[i];
  const float max = *std::max_element(z, z + params.vocab_size);
  double sum = 0;
  for (int32_t t = 0; t < params.vocab_size; ++t)
    sum += std::exp((z[t] - max) * static_cast<double>(inverse_temperature));
  const double log_sum = std::log(sum);
  const auto logprob = [&](int32_t t) {
    return static_cast<float>((z[t] - max) * static_cast<double>(inverse_temperature) - log_sum);
  };
  int32_t rank = 1;
  for (int32_t t = 0; t < params.vocab_size; ++t)
    rank += Before({z[t], t}, {z[token], token}) ? 1 : 0;
  params.logprobs[i] = logprob(token);
  params.ranks[i] = rank;
  const int32_t num_top = std::min(row.num_logprobs, params.vocab_size);
  std::vector<Candidate> all(params.vocab_size);
  for (int32_t t = 0; t < params.vocab_size; ++t) all[t] = {z[t], t};
  std::partial_sort(all.begin(), all.begin() + num_top, all.end(), Before);
  for (int32_t t = 0; t < params.max_top; ++t) {
    params.top_ids[i * params.max_top + t] = t < num_top ? all[t].id : -1;
    params.top_logprobs[i * params.max_top + t] = t < num_top ? logprob(all[t].id) : kMinusInfinity;
  }
}

void SampleOne(const SampleParams& params, int64_t i) {
  const SampleRow& row = params.row_params[i];
  const float* logits = params.logits + i * params.logits_stride;
  std::vector<float> z(logits, logits + params.vocab_size);
  float raw_max = kMinusInfinity;
  bool is_finite = true;
  for (const float v : z) {
    is_finite = is_finite && !std::isnan(v);
    raw_max = std::max(raw_max, v);
  }
  is_finite = is_finite && std::isfinite(raw_max);
  Process(params, row, &z);
  const auto best = std::max_element(z.begin(), z.end());
  int32_t token = kNonFinite;
  if (is_finite && row.target_token >= 0) {
    token = row.target_token;
  } else if (is_finite && std::isfinite(*best)) {
    token = row.temperature == 0 ? static_cast<int32_t>(best - z.begin()) : Draw(row, z, *best);
  }
  params.tokens[i] = token;
  if (row.slot >= 0 && row.target_token < 0) params.last_tokens[row.slot] = token;
  if (row.num_logprobs < 0 || token < 0) return;
  if (row.processed_logprobs != 0 && std::isfinite(*best)) {
    Score(params, i, token, z.data(), row.temperature > 0 ? 1.0f / row.temperature : 1.0f);
  } else {
    Score(params, i, token, logits, 1.0f);
  }
}

}  // namespace

absl::Status Sample(Context& context, const SampleParams& params) {
  PAGODA_RETURN_IF_ERROR(Validate(params));
  context.ParallelFor(
      params.rows, params.rows * params.vocab_size, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) SampleOne(params, i);
      });
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cpu
