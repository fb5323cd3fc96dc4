#pragma once

#include <cstdint>

namespace pagoda::daemon {

// What workers do for those who ask now.
enum class Ability : uint8_t {
  kNoWorkers,  // they are lost, and being replaced
  kIsLate,     // a step takes so long that they may be stuck
  kComputes,
};

// Whether a daemon that has started is ready to serve. Workers that are replaced at once are no
// reason to send clients elsewhere: their requests wait for less than a second. One second without
// any, or a step that is late, is; whoever is ready again says so at once. Thread-compatible.
class Readiness {
 public:
  static constexpr int64_t kPatienceNs = 1'000'000'000;

  // REQUIRES: `now_ns` does not go back.
  bool Update(Ability ability, int64_t now_ns) {
    if (ability == Ability::kComputes) {
      computed_ns_ = now_ns;
      is_ready_ = true;
    } else if (ability == Ability::kIsLate || now_ns - computed_ns_ >= kPatienceNs) {
      is_ready_ = false;
    }
    return is_ready_;
  }

 private:
  bool is_ready_ = true;
  int64_t computed_ns_ = 0;  // when they were last seen to
};

}  // namespace pagoda::daemon
