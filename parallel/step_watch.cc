#include "parallel/step_watch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace pagoda::parallel {
namespace {

constexpr int64_t kMicrosecond = 1'000;
constexpr int kDurationsPerOctave = 4;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int SizeIndex(int64_t num_tokens, int num_sizes) {
  const uint64_t at_least_one = static_cast<uint64_t>(std::max<int64_t>(num_tokens, 1));
  return std::min<int>(static_cast<int>(std::bit_width(at_least_one)) - 1, num_sizes - 1);
}

int DurationIndex(int64_t duration_ns, int num_durations) {
  const double us = static_cast<double>(std::max(duration_ns, kMicrosecond)) / kMicrosecond;
  const int index = static_cast<int>(std::log2(us) * kDurationsPerOctave);
  return std::min(index, num_durations - 1);
}

}  // namespace

void StepWatch::Observe(int64_t num_tokens, int64_t duration_ns) {
  if (num_patient_steps_ > 0) --num_patient_steps_;
  Size& size = sizes_[SizeIndex(num_tokens, kNumSizes)];
  if (size.num_steps >= kMaxSteps) {
    size.num_steps = 0;
    for (uint32_t& count : size.num_by_duration) size.num_steps += count /= 2;
  }
  ++size.num_steps;
  ++size.num_by_duration[DurationIndex(duration_ns, kNumDurations)];
}

int64_t StepWatch::P99Ns(const Size& size) {
  uint32_t num_above = size.num_steps / 100;
  int index = kNumDurations - 1;
  for (; index > 0; --index) {
    const uint32_t count = size.num_by_duration[index];
    if (count > num_above) break;
    num_above -= count;
  }
  return static_cast<int64_t>(std::exp2((index + 1.0) / kDurationsPerOctave) * kMicrosecond);
}

int64_t StepWatch::LimitNs(int64_t num_tokens) const {
  if (max_limit_ns_ == 0) return kNoLimit;
  return num_patient_steps_ > 0 ? max_limit_ns_ : LearnedLimitNs(num_tokens);
}

int64_t StepWatch::LateNs(int64_t num_tokens) const {
  return max_limit_ns_ == 0 ? kNoLimit : LearnedLimitNs(num_tokens) / 4 * 3;
}

int64_t StepWatch::LearnedLimitNs(int64_t num_tokens) const {
  const int index = SizeIndex(num_tokens, kNumSizes);
  const auto is_known = [this](int i) { return sizes_[i].num_steps >= kMinSteps; };
  int known = index;
  while (known < kNumSizes && !is_known(known)) ++known;
  double ratio = 1.0;
  if (known == kNumSizes) {
    known = index;
    while (known >= 0 && !is_known(known)) --known;
    if (known < 0) return max_limit_ns_;
    ratio = std::exp2(index - known + 1);
  }
  const double learned_ns = static_cast<double>(P99Ns(sizes_[known])) * ratio * kNumTimesP99;
  if (learned_ns >= static_cast<double>(max_limit_ns_)) return max_limit_ns_;
  return std::min(max_limit_ns_, std::max(kMinLimitNs, static_cast<int64_t>(learned_ns)));
}

}  // namespace pagoda::parallel
