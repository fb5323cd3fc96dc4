#pragma once

#include <cstddef>
#include <cstdint>

namespace pagoda::daemon {

// Where a daemon stands. It goes from left to right and skips; only from kRecovering, in which
// requests are taken but nobody computes, it comes back to kReady.
enum class ServingState : uint8_t { kLoading, kReady, kRecovering, kDraining, kFailed };
inline constexpr size_t kNumServingStates = 5;

}  // namespace pagoda::daemon
