#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/server/gpu/nvml.h"
#include "kernels/base/clock.h"

namespace pagoda::daemon {

// Asks the GPUs that are used how they are, on a thread of its own: no call of the driver's library
// is made by a scrape or by what serves, and one that never returns holds up nobody. Thread-safe.
class GpuMonitor {
 public:
  struct Options {
    std::vector<std::string> pci_bus_ids;
    std::string library = Nvml::kLibrary;
    absl::Duration interval = absl::Seconds(5);
    const Clock* clock = &Clock::Monotonic();  // outlives the process
  };

  // Where the library is missing, says so in the log, once, and has no readings ever.
  explicit GpuMonitor(Options options);
  // Leaves a thread behind that hangs in the driver.
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // In the order of pci_bus_ids; null for a GPU that does not answer, which one is that has not for
  // some intervals. Absent where there is no library, and until it has been asked for the first
  // time.
  GpuReadings Readings() const;

 private:
  struct Shared;

  static void Run(const std::shared_ptr<Shared>& shared);

  // The thread may outlive this.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace pagoda::daemon
