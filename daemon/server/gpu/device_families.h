#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/server/family_writer.h"
#include "daemon/server/gpu/nvml.h"
#include "engine/metrics.h"

namespace pagoda::daemon {

// A device that workers compute on.
struct DeviceStats {
  int index = 0;  // as --devices counts them
  std::string name;
  std::string pci_bus_id;  // empty: no GPU
  // Whether its workers know how long they take to meet.
  bool measures_collectives = true;
  // What its workers have taken.
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t activation_bytes = 0;
  uint64_t workspace_bytes = 0;
  // Of each of its workers.
  std::vector<const engine::DeviceMetrics*> work;
};

// The families with a label "gpu": what devices do, and where `readings` are how GPUs are.
// `readings` has as many elements as `devices` have GPUs, in their order.
void WriteDevices(const std::vector<DeviceStats>& devices,
                  const GpuReadings& readings,
                  Families* out);

}  // namespace pagoda::daemon
