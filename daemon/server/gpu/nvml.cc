#include "daemon/server/gpu/nvml.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

// The library's binary interface, which it keeps: its header need not be here when this is built.
using Result = int;
using Device = void*;
constexpr Result kSuccess = 0;
constexpr Result kNotSupported = 3;
constexpr Result kNoPermission = 4;
constexpr unsigned kGpuTemperature = 0;
constexpr unsigned kSmClock = 1;
constexpr unsigned kUncorrected = 1;
constexpr unsigned kVolatile = 0;
// Of clocks: software and hardware power caps, thermal slowdowns, the power brake.
constexpr unsigned long long kSlowdownReasons = 0x04 | 0x08 | 0x20 | 0x40 | 0x80;

}  // namespace

// Null: this driver's library has no such function.
struct Nvml::Functions {
  struct Utilization {
    unsigned gpu_percent;
    unsigned memory_percent;
  };
  struct Memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
  };

  void* library = nullptr;
  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*handle_by_pci_bus_id)(const char*, Device*) = nullptr;
  Result (*utilization)(Device, Utilization*) = nullptr;
  Result (*memory)(Device, Memory*) = nullptr;
  Result (*power)(Device, unsigned*) = nullptr;
  Result (*energy)(Device, unsigned long long*) = nullptr;
  Result (*temperature)(Device, unsigned, unsigned*) = nullptr;
  Result (*clock)(Device, unsigned, unsigned*) = nullptr;
  Result (*ecc_errors)(Device, unsigned, unsigned, unsigned long long*) = nullptr;
  Result (*throttle_reasons)(Device, unsigned long long*) = nullptr;

  template <typename Function>
  void Find(const char* name, Function* function) const {
    *function = reinterpret_cast<Function>(dlsym(library, name));
  }
  std::string TextOf(Result result) const {
    const char* const text = error_string == nullptr ? nullptr : error_string(result);
    return text == nullptr ? absl::StrCat("NVML error ", result) : text;
  }
  // True: the value counts. What a device does not have is no error.
  template <typename Function, typename... Arguments>
  absl::StatusOr<bool> Ask(Function* function, Arguments... arguments) const {
    if (function == nullptr) return false;
    const Result result = function(arguments...);
    if (result == kSuccess) return true;
    if (result == kNotSupported || result == kNoPermission) return false;
    return absl::UnavailableError(TextOf(result));
  }
};

Nvml::Nvml() : functions_(std::make_unique<Functions>()) {}

Nvml::~Nvml() {
  if (functions_->library == nullptr) return;
  functions_->shutdown();
  dlclose(functions_->library);
}

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open(const std::string& library) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* const error = dlerror();
    return absl::NotFoundError(error == nullptr ? library : error);
  }
  std::unique_ptr<Nvml> nvml(new Nvml());
  Functions& f = *nvml->functions_;
  f.library = opened;
  f.Find("nvmlInit_v2", &f.init);
  f.Find("nvmlShutdown", &f.shutdown);
  f.Find("nvmlErrorString", &f.error_string);
  f.Find("nvmlDeviceGetHandleByPciBusId_v2", &f.handle_by_pci_bus_id);
  f.Find("nvmlDeviceGetUtilizationRates", &f.utilization);
  f.Find("nvmlDeviceGetMemoryInfo", &f.memory);
  f.Find("nvmlDeviceGetPowerUsage", &f.power);
  f.Find("nvmlDeviceGetTotalEnergyConsumption", &f.energy);
  f.Find("nvmlDeviceGetTemperature", &f.temperature);
  f.Find("nvmlDeviceGetClockInfo", &f.clock);
  f.Find("nvmlDeviceGetTotalEccErrors", &f.ecc_errors);
  f.Find("nvmlDeviceGetCurrentClocksThrottleReasons", &f.throttle_reasons);
  absl::Status status;
  if (f.init == nullptr || f.shutdown == nullptr || f.handle_by_pci_bus_id == nullptr) {
    status = absl::UnavailableError(absl::StrCat(library, " is not the library of a driver"));
  } else if (const Result result = f.init(); result != kSuccess) {
    status = absl::UnavailableError(absl::StrCat(library, ": ", f.TextOf(result)));
  }
  if (status.ok()) return nvml;
  dlclose(f.library);
  f.library = nullptr;
  return status;
}

absl::StatusOr<GpuReading> Nvml::Read(const std::string& pci_bus_id) {
  const Functions& f = *functions_;
  // Asked for anew: a device that was reset has another handle.
  Device device = nullptr;
  if (const Result result = f.handle_by_pci_bus_id(pci_bus_id.c_str(), &device);
      result != kSuccess) {
    return absl::UnavailableError(f.TextOf(result));
  }
  GpuReading reading;
  Functions::Utilization utilization{};
  PAGODA_ASSIGN_OR_RETURN(bool known, f.Ask(f.utilization, device, &utilization));
  if (known) reading.utilization = utilization.gpu_percent / 100.0;
  Functions::Memory memory{};
  PAGODA_ASSIGN_OR_RETURN(known, f.Ask(f.memory, device, &memory));
  if (known) {
    reading.memory_bytes = memory.total;
    reading.free_memory_bytes = memory.free;
  }
  unsigned value = 0;
  PAGODA_ASSIGN_OR_RETURN(known, f.Ask(f.power, device, &value));
  if (known) reading.power_watts = value * 1e-3;
  PAGODA_ASSIGN_OR_RETURN(known, f.Ask(f.temperature, device, kGpuTemperature, &value));
  if (known) reading.temperature_celsius = value;
  PAGODA_ASSIGN_OR_RETURN(known, f.Ask(f.clock, device, kSmClock, &value));
  if (known) reading.sm_clock_hertz = value * 1e6;
  unsigned long long large = 0;
  PAGODA_ASSIGN_OR_RETURN(known, f.Ask(f.energy, device, &large));
  if (known) reading.energy_joules = static_cast<double>(large) * 1e-3;
  PAGODA_ASSIGN_OR_RETURN(known, f.Ask(f.ecc_errors, device, kUncorrected, kVolatile, &large));
  if (known) reading.uncorrected_ecc_errors = large;
  PAGODA_ASSIGN_OR_RETURN(known, f.Ask(f.throttle_reasons, device, &large));
  if (known) reading.is_throttled = (large & kSlowdownReasons) != 0;
  return reading;
}

}  // namespace pagoda::daemon
