#include "kernels/cpu/sample_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/philox.h"

namespace pagoda::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// Up to this many tokens are sorted and drawn from one by one; more stay where they are.
constexpr int64_t kMaxList = 2048;
// A first look for top_p: tokens e^-kNear times less probable than the best are rarely needed.
constexpr float kNear = 8.0f;

bool Before(const RowToken& a, const RowToken& b) {
  return a.z > b.z || (a.z == b.z && a.id < b.id);
}

double Scaled(float z, const RowScale& scale) {
  return static_cast<double>((z - scale.max) * scale.inverse_temperature);
}

RowScale ScaleOf(float max, float temperature) {
  // A finite factor keeps the best token at 0 however small the temperature.
  return {max, std::min(1.0f / temperature, std::numeric_limits<float>::max())};
}

}  // namespace

// ---- The row.

// False where there is nothing to sample from: a NaN, +inf, or -inf alone.
bool RowSampler::OpenRow(const float* logits, int32_t vocab_size) {
  vocab_size_ = vocab_size;
  num_blocks_ = (vocab_size + kRowBlock - 1) / kRowBlock;
  raw_blocks_.resize(num_blocks_);
  raw_max_.resize(num_blocks_);
  for (int64_t b = 0; b < num_blocks_; ++b) raw_blocks_[b] = logits + b * kRowBlock;
  if (vocab_size % kRowBlock != 0) {
    tail_.assign(kRowBlock, kMinusInfinity);
    std::copy(raw_blocks_.back(), logits + vocab_size, tail_.begin());
    raw_blocks_.back() = tail_.data();
  }
  if (static_cast<int64_t>(list_.size()) < vocab_size) list_.resize(vocab_size);
  const RowScan scan = kernels_.scan(raw_blocks_.data(), num_blocks_, raw_max_.data());
  raw_row_max_ = scan.max;
  return !scan.has_nan && std::isfinite(scan.max);
}

float* RowSampler::EditableBlock(int64_t block) {
  float* const copy = edited_.data() + block * kRowBlock;
  if (blocks_[block] != copy) {
    std::copy_n(blocks_[block], kRowBlock, copy);
    blocks_[block] = copy;
    touched_.push_back(block);
  }
  return copy;
}

// Of pointers alone.
void RowSampler::CopyRow() {
  edited_.resize(num_blocks_ * kRowBlock);
  touched_.clear();
  blocks_ = raw_blocks_;
  block_max_ = raw_max_;
}

void RowSampler::Edit(const SampleParams& params, const SampleRow& row) {
  const auto in_vocab = [&](int32_t id) { return id >= 0 && id < vocab_size_; };
  CopyRow();
  if (row.allowed_begin < row.allowed_end) {
    minus_infinity_.assign(kRowBlock, kMinusInfinity);
    std::fill(blocks_.begin(), blocks_.end(), minus_infinity_.data());
    std::fill(block_max_.begin(), block_max_.end(), kMinusInfinity);
    for (int32_t i = row.allowed_begin; i < row.allowed_end; ++i) {
      const int32_t id = params.allowed_ids[i];
      if (in_vocab(id)) Editable(id) = raw_blocks_[id / kRowBlock][id % kRowBlock];
    }
  }
  for (int32_t i = row.masked_begin; i < row.masked_end; ++i) {
    if (in_vocab(params.masked_ids[i])) Editable(params.masked_ids[i]) = kMinusInfinity;
  }
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i) {
    if (in_vocab(params.bias_ids[i])) Editable(params.bias_ids[i]) += params.bias_values[i];
  }
  for (int32_t i = row.penalty_begin; i < row.penalty_end; ++i) {
    const PenaltyEntry& entry = params.penalties[i];
    if (!in_vocab(entry.token)) continue;
    float& z = Editable(entry.token);
    z = z > 0 ? z / row.repetition_penalty : z * row.repetition_penalty;
    z -= static_cast<float>(entry.output_count) * row.frequency_penalty;
    if (entry.output_count > 0) z -= row.presence_penalty;
  }
  for (const int64_t block : touched_) kernels_.scan(&blocks_[block], 1, &block_max_[block]);
}

// ---- Choosing.

RowToken RowSampler::Best(const RowView& view) {
  const int64_t block =
      std::max_element(view.block_max, view.block_max + view.num_blocks) - view.block_max;
  const float max = view.block_max[block];
  const float* logits = view.blocks[block];
  return {max,
          static_cast<int32_t>(block * kRowBlock +
                               (std::find(logits, logits + kRowBlock, max) - logits))};
}

void RowSampler::Collect(const RowView& view,
                         const RowCut& in_play,
                         const RowScale& scale,
                         const RowFilter& filter) {
  list_size_ = kernels_.collect(view, in_play, scale, filter, vocab_size_, list_.data());
}

void RowSampler::CollectBest(const RowView& view, const RowCut& in_play, int64_t count) {
  // The count-th largest maximum of blocks has at least `count` tokens at or above it.
  RowFilter filter;
  if (count <= num_blocks_) {
    kth_.assign(view.block_max, view.block_max + num_blocks_);
    std::nth_element(kth_.begin(), kth_.begin() + (count - 1), kth_.end(), std::greater<float>());
    filter.least = kth_[count - 1];
  }
  Collect(view, in_play, {}, filter);
  if (list_size_ <= count) return;
  std::nth_element(List().begin(), List().begin() + (count - 1), List().end(), Before);
  list_size_ = count;
}

void RowSampler::KeepTopK(int32_t top_k) {
  if (top_k >= vocab_size_) return;
  CollectBest(View(), cut_, top_k);
  if (list_size_ == 0) return;
  uses_list_ = list_size_ <= kMaxList;
  if (uses_list_) {
    std::sort(List().begin(), List().end(), Before);
  } else {
    cut_ = *std::max_element(List().begin(), List().end(), Before);
  }
}

// Makes a list of what is in play and at least `least`, if it is short enough.
void RowSampler::KeepShortList(float least) {
  const int64_t capacity = std::min<int64_t>(kMaxList, vocab_size_);
  list_size_ = kernels_.collect(View(), cut_, {}, {.least = least}, capacity, list_.data());
  uses_list_ = list_size_ <= capacity;
  if (uses_list_) std::sort(List().begin(), List().end(), Before);
}

// Keeps the shortest prefix of the order whose mass reaches `fraction` of what is in play.
void RowSampler::KeepMass(double fraction, const RowScale& scale) {
  const auto prefix = [&](double target) {
    double sum = 0;
    int64_t size = 0;
    while (size < list_size_ && (size == 0 || sum < target))
      sum += std::exp(Scaled(list_[size++].z, scale));
    if (sum < target) return false;
    list_size_ = size;
    return true;
  };
  if (uses_list_) {
    double total = 0;
    for (const RowToken& token : List()) total += std::exp(Scaled(token.z, scale));
    prefix(fraction * total);
    return;
  }
  const double target = fraction * kernels_.sum_exp(View(), cut_, scale).sum;
  KeepShortList(std::max(cut_.z, scale.max - kNear / scale.inverse_temperature));
  if (uses_list_ && prefix(target)) return;
  uses_list_ = false;
  cut_ = CutInBins(cut_, scale, 0.0f, target);
}

// The token that brings the mass, taken by |s - center| upwards (and id), to `target`.
RowToken RowSampler::CutInBins(const RowCut& in_play,
                               const RowScale& scale,
                               float center,
                               double target) {
  bins_.assign(kNumBins, 0.0);
  kernels_.mass_by_bin(View(), in_play, scale, center, bins_.data());
  double sum = 0;
  int32_t bin = 0;
  while (bin < kNumBins - 1 && sum + bins_[bin] < target) sum += bins_[bin++];
  Collect(View(), in_play, scale, {.bin = bin, .center = center});
  const auto distance = [&](const RowToken& token) {
    return std::abs(Scaled(token.z, scale) - static_cast<double>(center));
  };
  const auto nearer = [&](const RowToken& a, const RowToken& b) {
    const double da = distance(a), db = distance(b);
    if (da != db) return da < db;
    return center == 0.0f ? Before(a, b) : a.id < b.id;
  };
  // Collected by id: ties alone need no sorting.
  const bool all_equal = std::all_of(
      List().begin(), List().end(), [&](const RowToken& t) { return t.z == list_[0].z; });
  if (!all_equal) std::sort(List().begin(), List().end(), nearer);
  RowToken last = in_play;
  for (const RowToken& token : List()) {
    last = token;
    sum += std::exp(Scaled(token.z, scale));
    if (sum >= target) break;
  }
  return last;
}

// Locally typical sampling: keeps tokens by |-log p - H| upwards, lower id on ties, until their
// mass reaches `fraction`. With p = e^s / total and H the entropy, that distance is |s - mean of
// s|.
void RowSampler::KeepTypical(double fraction, const RowScale& scale) {
  if (uses_list_) {
    RowMass mass;
    for (const RowToken& token : List()) {
      const double s = Scaled(token.z, scale);
      const double p = std::exp(s);
      mass.sum += p;
      mass.weighted += p > 0 ? p * s : 0.0;
    }
    const double mean = mass.weighted / mass.sum;
    const auto distance = [&](const RowToken& token) {
      return std::abs(Scaled(token.z, scale) - mean);
    };
    std::sort(List().begin(), List().end(), [&](const RowToken& a, const RowToken& b) {
      const double da = distance(a), db = distance(b);
      return da != db ? da < db : a.id < b.id;
    });
    double sum = 0;
    int64_t size = 0;
    while (size < list_size_ && (size == 0 || sum < fraction * mass.sum)) {
      sum += std::exp(Scaled(list_[size++].z, scale));
    }
    list_size_ = size;
    return;
  }
  const RowMass mass = kernels_.sum_exp(View(), cut_, scale);
  const auto center = static_cast<float>(mass.weighted / mass.sum);
  const RowToken last = CutInBins(cut_, scale, center, fraction * mass.sum);
  const double limit = std::abs(Scaled(last.z, scale) - static_cast<double>(center));
  // What is left is no prefix of the order: the others are taken out of the row.
  Collect(View(), cut_, scale, {});
  for (const RowToken& token : List()) {
    const double distance = std::abs(Scaled(token.z, scale) - static_cast<double>(center));
    if (distance > limit || (distance == limit && token.id > last.id))
      Editable(token.id) = kMinusInfinity;
  }
}

int32_t RowSampler::DrawFromList(const SampleRow& row, const RowScale& scale) {
  int32_t best_id = kNonFinite;
  double best = 0;
  for (const RowToken& token : List()) {
    const PhiloxBlock block = Philox4x32<kNoiseRounds>(
        row.seed, static_cast<uint64_t>(row.position), static_cast<uint64_t>(token.id / 4));
    const double uniform = static_cast<double>(UniformFromBits(block.word[token.id % 4]));
    const double noisy = Scaled(token.z, scale) - std::log(-std::log(uniform));
    if (best_id < 0 || noisy > best || (noisy == best && token.id < best_id)) {
      best = noisy;
      best_id = token.id;
    }
  }
  return best_id;
}

int32_t RowSampler::Draw(const SampleRow& row, float max) {
  const RowScale scale = ScaleOf(max, row.temperature);
  cut_ = kNoCut;
  uses_list_ = false;
  if (row.min_p > 0) {
    cut_ = {
        std::max(max + std::log(row.min_p) * row.temperature, std::numeric_limits<float>::lowest()),
        std::numeric_limits<int32_t>::max()};
  }
  if (row.top_k > 0) {
    KeepTopK(row.top_k);
  } else if (row.min_p > 0) {
    KeepShortList(cut_.z);
  }
  if (row.top_p < 1) KeepMass(static_cast<double>(row.top_p), scale);
  if (row.typical_p < 1) KeepTypical(static_cast<double>(row.typical_p), scale);
  if (uses_list_) return DrawFromList(row, scale);
  return kernels_.race(View(), cut_, scale, row.seed, row.position);
}

// ---- Scoring.

void RowSampler::Score(const SampleParams& params,
                       int64_t row_idx,
                       int32_t token,
                       const RowView& view,
                       const RowScale& scale) {
  const double log_sum = std::log(kernels_.sum_exp(view, kNoCut, scale).sum);
  // In double: a difference of the raw values loses nothing.
  const auto logprob = [&](float z) {
    return static_cast<float>((static_cast<double>(z) - static_cast<double>(scale.max)) *
                                  static_cast<double>(scale.inverse_temperature) -
                              log_sum);
  };
  const float z = view.blocks[token / kRowBlock][token % kRowBlock];
  params.logprobs[row_idx] = logprob(z);
  params.ranks[row_idx] = static_cast<int32_t>(kernels_.count_before(view, {z, token})) + 1;
  const int64_t num_top = std::min<int64_t>(params.row_params[row_idx].num_logprobs, vocab_size_);
  list_size_ = 0;
  if (num_top > 0) CollectBest(view, kNoCut, num_top);
  std::sort(List().begin(), List().end(), Before);
  int32_t* const ids = params.top_ids + row_idx * params.max_top;
  float* const logprobs = params.top_logprobs + row_idx * params.max_top;
  for (int64_t i = 0; i < list_size_; ++i) {
    ids[i] = list_[i].id;
    logprobs[i] = logprob(list_[i].z);
  }
  std::fill(ids + list_size_, ids + params.max_top, kNoTopEntry);
  std::fill(logprobs + list_size_, logprobs + params.max_top, kMinusInfinity);
}

void RowSampler::Sample(const SampleParams& params, int64_t row_idx) {
  const SampleRow& row = params.row_params[row_idx];
  const int32_t token = OpenRow(params.logits + row_idx * params.logits_stride, params.vocab_size)
                            ? SampleOpened(params, row_idx)
                            : kNonFinite;
  params.tokens[row_idx] = token;
  if (row.slot >= 0 && row.target_token < 0) params.last_tokens[row.slot] = token;
}

int32_t RowSampler::SampleOpened(const SampleParams& params, int64_t row_idx) {
  const SampleRow& row = params.row_params[row_idx];
  const bool is_scored_only = row.target_token >= 0;
  const bool scores_raw = row.num_logprobs >= 0 && row.processed_logprobs == 0;
  const bool scores_processed = row.num_logprobs >= 0 && row.processed_logprobs != 0;
  const RowScale raw_scale = {raw_row_max_, 1.0f};
  if (is_scored_only && !scores_processed) {
    if (scores_raw) Score(params, row_idx, row.target_token, RawView(), raw_scale);
    return row.target_token;
  }
  const bool is_neutral = row.allowed_begin == row.allowed_end &&
                          row.masked_begin == row.masked_end && row.bias_begin == row.bias_end &&
                          row.penalty_begin == row.penalty_end;
  // Most greedy rows need no more than the pass that OpenRow has made.
  if (is_neutral && row.temperature == 0 && row.num_logprobs < 0) return Best(RawView()).id;
  Edit(params, row);
  const RowToken best = Best(View());
  if (!std::isfinite(best.z)) return kNonFinite;
  int32_t token = best.id;
  if (is_scored_only) {
    token = row.target_token;
  } else if (row.temperature > 0) {
    token = Draw(row, best.z);
  }
  if (scores_raw) Score(params, row_idx, token, RawView(), raw_scale);
  if (scores_processed) {
    // Typical filtering has taken tokens out of the row.
    if (!is_scored_only && row.typical_p < 1) Edit(params, row);
    Score(params,
          row_idx,
          token,
          View(),
          ScaleOf(best.z, row.temperature > 0 ? row.temperature : 1.0f));
  }
  return token;
}

}  // namespace pagoda::kernels::cpu
