#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

// A libnvidia-ml.so.1 without a driver. What it does follows from the environment variable
// PAGODA_FAKE_NVML when it is opened, and from fake_nvml_set after that: words among
//   no_driver      nvmlInit fails
//   lost=I         GPU I has fallen off its bus
//   hang           every call on a device waits until this is taken back
//   unsupported    the devices tell nothing but that they are there
//   throttled      too hot
// Its GPUs are 0000:00:01.0, 0000:00:02.0, ... of which GPU i says i in its figures.

namespace {

constexpr int kNumGpus = 4;
constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kDriverNotLoaded = 9;
constexpr int kGpuIsLost = 15;

struct Behaviour {
  std::atomic<bool> no_driver{false}, hang{false}, unsupported{false}, throttled{false};
  std::atomic<int> lost{-1};
};
Behaviour g_behaviour;
std::atomic<int> g_num_calls{0};

char g_devices[kNumGpus];

void Set(const char* words) {
  const std::string all = words == nullptr ? "" : words;
  const auto has = [&all](const char* word) { return all.find(word) != std::string::npos; };
  g_behaviour.no_driver = has("no_driver");
  g_behaviour.unsupported = has("unsupported");
  g_behaviour.throttled = has("throttled");
  const size_t lost = all.find("lost=");
  g_behaviour.lost = lost == std::string::npos ? -1 : std::atoi(all.c_str() + lost + 5);
  g_behaviour.hang = has("hang");
}

int IndexOf(const void* device) {
  return static_cast<int>(static_cast<const char*>(device) - g_devices);
}

// What every call on a device begins with.
int Ask(const void* device) {
  ++g_num_calls;
  while (g_behaviour.hang) std::this_thread::yield();
  if (g_behaviour.lost == IndexOf(device)) return kGpuIsLost;
  return g_behaviour.unsupported ? kNotSupported : kSuccess;
}

template <typename T>
int Tell(const void* device, T* out, T value) {
  const int result = Ask(device);
  if (result == kSuccess) *out = value;
  return result;
}

struct Utilization {
  unsigned gpu_percent, memory_percent;
};
struct Memory {
  unsigned long long total, free, used;
};

}  // namespace

#define PAGODA_EXPORT extern "C" __attribute__((visibility("default")))

PAGODA_EXPORT void fake_nvml_set(const char* words) { Set(words); }
PAGODA_EXPORT int fake_nvml_num_calls() { return g_num_calls; }

PAGODA_EXPORT int nvmlInit_v2() {
  if (const char* const words = std::getenv("PAGODA_FAKE_NVML")) Set(words);
  return g_behaviour.no_driver ? kDriverNotLoaded : kSuccess;
}
PAGODA_EXPORT int nvmlShutdown() { return kSuccess; }
PAGODA_EXPORT const char* nvmlErrorString(int result) {
  if (result == kGpuIsLost) return "GPU is lost";
  if (result == kDriverNotLoaded) return "Driver Not Loaded";
  return result == kNotFound ? "Not Found" : "Unknown Error";
}
PAGODA_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* pci_bus_id, void** device) {
  unsigned domain = 0, bus = 0, slot = 0;
  if (std::sscanf(pci_bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) return kNotFound;
  if (slot < 1 || slot > kNumGpus) return kNotFound;
  *device = g_devices + slot - 1;
  return kSuccess;
}
PAGODA_EXPORT int nvmlDeviceGetUtilizationRates(void* device, Utilization* out) {
  return Tell(device, out, {50u + static_cast<unsigned>(IndexOf(device)), 10u});
}
PAGODA_EXPORT int nvmlDeviceGetMemoryInfo(void* device, Memory* out) {
  return Tell(device, out, {80ull << 30, 30ull << 30, 50ull << 30});
}
PAGODA_EXPORT int nvmlDeviceGetPowerUsage(void* device, unsigned* out) {
  return Tell(device, out, 300'000u + static_cast<unsigned>(IndexOf(device)));
}
PAGODA_EXPORT int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* out) {
  return Tell(device, out, 7'500'000ull + static_cast<unsigned long long>(g_num_calls.load()));
}
PAGODA_EXPORT int nvmlDeviceGetTemperature(void* device, unsigned sensor, unsigned* out) {
  return sensor == 0 ? Tell(device, out, 60u + static_cast<unsigned>(IndexOf(device)))
                     : kNotSupported;
}
PAGODA_EXPORT int nvmlDeviceGetClockInfo(void* device, unsigned clock, unsigned* out) {
  return clock == 1 ? Tell(device, out, 1980u) : kNotSupported;
}
PAGODA_EXPORT int nvmlDeviceGetTotalEccErrors(void* device,
                                              unsigned type,
                                              unsigned counter,
                                              unsigned long long* out) {
  return type == 1 && counter == 0 ? Tell(device, out, 2ull) : kNotSupported;
}
PAGODA_EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* out) {
  // Idle is a reason too, and no trouble.
  return Tell(device, out, g_behaviour.throttled ? 0x41ull : 0x01ull);
}
