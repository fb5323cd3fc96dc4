#pragma once

#include <array>
#include <cstdint>

namespace pagoda::parallel {

// How long a step may take before its worker counts as stuck: five times what 99 of 100 steps of
// its size took, at least two seconds, at most the configured limit. Sizes are tokens in powers of
// two. A size that was not seen often enough is judged by the next larger one that was, or else by
// the next smaller one, times the ratio of their tokens (work grows no faster, and whatever a step
// costs at any size only adds to the estimate). Nothing known: the configured limit.
//
// The learned limit only finds stuck workers early. After it was exceeded the configured limit
// holds for a while, so that a step that is merely slow passes when it is tried again.
// Thread-compatible; knows no clock.
class StepWatch {
 public:
  static constexpr int64_t kMinLimitNs = 2'000'000'000;
  static constexpr int64_t kNumTimesP99 = 5;

  // `max_limit_ns` 0: no limit at all, whatever is learned.
  explicit StepWatch(int64_t max_limit_ns) : max_limit_ns_(max_limit_ns) {}

  // A step of so many tokens took so long.
  void Observe(int64_t num_tokens, int64_t duration_ns);
  // A step was given up that might have been slow rather than stuck.
  void NoteGivenUp() { num_patient_steps_ = kNumPatientSteps; }
  // INT64_MAX: none.
  int64_t LimitNs(int64_t num_tokens) const;
  // From when on a step looks stuck, by what was learned: before it is given up. INT64_MAX: never.
  int64_t LateNs(int64_t num_tokens) const;

 private:
  // Steps of a size from which its times are believed.
  static constexpr uint32_t kMinSteps = 4;
  // Then all counts are halved: old steps fade.
  static constexpr uint32_t kMaxSteps = 2000;
  static constexpr int kNumPatientSteps = 256;
  static constexpr int kNumSizes = 40;
  // Four durations per power of two of microseconds, up to days.
  static constexpr int kNumDurations = 160;

  struct Size {
    uint32_t num_steps = 0;
    std::array<uint32_t, kNumDurations> num_by_duration{};
  };
  int64_t LearnedLimitNs(int64_t num_tokens) const;
  // Upper edge of the duration that 99 of 100 steps did not exceed.
  static int64_t P99Ns(const Size& size);

  const int64_t max_limit_ns_;
  int num_patient_steps_ = 0;
  std::array<Size, kNumSizes> sizes_{};
};

}  // namespace pagoda::parallel
