#pragma once

#include <cstddef>
#include <cstdint>

namespace pagoda::daemon {

// Where a daemon stands. It goes from left to right and skips.
enum class ServingState : uint8_t { kLoading, kReady, kDraining, kFailed };
inline constexpr size_t kNumServingStates = 4;

}  // namespace pagoda::daemon
