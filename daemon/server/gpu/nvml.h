#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace pagoda::daemon {

// What a GPU says of itself at one moment. Absent: its driver does not know.
struct GpuReading {
  absl::optional<double> utilization;  // share of the time with a kernel, 0 to 1
  absl::optional<uint64_t> memory_bytes;
  absl::optional<uint64_t> free_memory_bytes;
  absl::optional<double> power_watts;
  absl::optional<double> energy_joules;  // since the driver was loaded
  absl::optional<double> temperature_celsius;
  absl::optional<double> sm_clock_hertz;
  absl::optional<uint64_t> uncorrected_ecc_errors;  // since the driver was loaded
  // Runs slower than it could, for its heat or its power.
  absl::optional<bool> is_throttled;
};

// Of several; null for a GPU that does not answer. None: nobody can ask.
using GpuReadings = absl::optional<std::vector<absl::optional<GpuReading>>>;

// NVIDIA's management library of this machine, which comes with the driver. Any call may wait for
// the driver, for ever if that hangs. Thread-compatible.
class Nvml {
 public:
  static constexpr char kLibrary[] = "libnvidia-ml.so.1";

  // NOT_FOUND where there is no such library, UNAVAILABLE where it cannot be used.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(const std::string& library = kLibrary);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // By the address of the device on its bus, as CUDA tells it. UNAVAILABLE for a device that is
  // lost or does not exist; what alone is not supported is absent.
  absl::StatusOr<GpuReading> Read(const std::string& pci_bus_id);

 private:
  struct Functions;

  Nvml();

  const std::unique_ptr<Functions> functions_;
};

}  // namespace pagoda::daemon
