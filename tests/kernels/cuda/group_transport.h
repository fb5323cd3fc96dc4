#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/collective/collective_plan.h"
#include "tests/kernels/cuda/group_ranks.h"

namespace pagoda::kernels::cuda::test {

enum class Transport { kIpc, kNccl };

// A group of `transport` in this rank.
absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeGroup(Transport transport,
                                                       const Rank& rank,
                                                       Shots shots = Shots::kAuto,
                                                       int64_t timeout_ns = 10'000'000'000);

// Waits, at most so long, until what was enqueued has run; then what the group says of it.
absl::Status AwaitGroup(const Rank& rank, DeviceGroup& group, int64_t timeout_ms = 60'000);

}  // namespace pagoda::kernels::cuda::test
