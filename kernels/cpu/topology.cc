#include "kernels/cpu/topology.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sched.h>
#include <set>
#include <string>
#include <unistd.h>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace pagoda::kernels::cpu {
namespace {

int ReadInt(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int value = 0;
  return file >> value ? value : otherwise;
}

int NumPhysicalCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  }
  std::set<std::pair<int, int>> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string folder = absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/");
    // Without topology files every logical processor counts as a core.
    const int core = ReadInt(folder + "core_id", -1 - cpu);
    cores.emplace(ReadInt(folder + "physical_package_id", 0), core);
  }
  return static_cast<int>(cores.size());
}

// cpu.max of control groups v2: "QUOTA PERIOD" in microseconds, or "max PERIOD".
int QuotaCores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period_us = 0;
  double quota_us = 0;
  if (!(file >> quota >> period_us) || !absl::SimpleAtod(quota, &quota_us) || period_us <= 0)
    return 1 << 20;
  return static_cast<int>(std::ceil(quota_us / period_us));
}

}  // namespace

int NumUsableCores() { return std::max(1, std::min(NumPhysicalCores(), QuotaCores())); }

}  // namespace pagoda::kernels::cpu
