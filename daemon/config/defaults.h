#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/config/setting_source.h"

namespace pagoda::daemon {

// What defaults depend on beside the configuration itself.
struct MachineFacts {
  int num_cores = 1;
  // Siblings counted once: what a worker computes with.
  int num_physical_cores = 1;
  uint64_t available_memory_bytes = 0;

  // This machine's: the cores and the memory that this process may use (affinity and control groups
  // are respected).
  static MachineFacts Measure();
};

// Fills every setting that nobody gave and that depends on the device or the machine. A pure
// function.
void ResolveDefaults(const MachineFacts& machine, MergedConfig* merged);

// What can be wrong about values that are right one by one. INVALID_ARGUMENT naming the settings.
absl::Status CheckConfig(const MergedConfig& merged);
// The same of how many replicas the machine has room for.
absl::Status CheckReplicas(const MachineFacts& machine, const MergedConfig& merged);

}  // namespace pagoda::daemon
