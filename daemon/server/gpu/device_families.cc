#include "daemon/server/gpu/device_families.h"

#include "absl/strings/str_cat.h"

namespace pagoda::daemon {
namespace {

using Labels = FamilyWriter::Labels;

Labels LabelsOf(const DeviceStats& device) { return {{"gpu", absl::StrCat(device.index)}}; }

Labels LabelsOf(const DeviceStats& device, const char* name, std::string value) {
  return {{"gpu", absl::StrCat(device.index)}, {name, std::move(value)}};
}

double Sum(const DeviceStats& device, engine::MetricCounter engine::DeviceMetrics::*counter) {
  uint64_t sum = 0;
  for (const engine::DeviceMetrics* work : device.work) sum += (work->*counter).value();
  return static_cast<double>(sum);
}

void WriteWork(const std::vector<DeviceStats>& devices, Families* out) {
  using Work = engine::DeviceMetrics;
  const auto write = [&](FamilyWriter family, engine::MetricCounter Work::*counter, double unit) {
    for (const DeviceStats& device : devices)
      family.Add(Sum(device, counter) * unit, LabelsOf(device));
  };
  write(out->Counter("pagoda_gpu_busy_seconds_total",
                     "Time in which the device had a step to do, as its worker saw it."),
        &Work::busy_ns,
        1e-9);
  FamilyWriter collective = out->Counter(
      "pagoda_collective_seconds_total",
      "Time in ops in which tensor-parallel ranks meet, waits included, where workers measure it.");
  for (const DeviceStats& device : devices) {
    if (!device.measures_collectives) continue;
    collective.Add(Sum(device, &Work::collective_ns) * 1e-9, LabelsOf(device));
  }
  write(out->Counter("pagoda_cuda_graph_replays_total", "Recorded graphs that were launched."),
        &Work::graph_replays,
        1);
  write(out->Counter("pagoda_cuda_graph_captures_total", "Graphs that were recorded."),
        &Work::graph_captures,
        1);
  write(out->Counter("pagoda_cuda_eager_steps_total", "Steps that launched no recorded graph."),
        &Work::eager_steps,
        1);
}

// Calls `write` with each GPU that answers and with what it says.
template <typename Write>
void ForEachGpu(const std::vector<DeviceStats>& devices,
                const std::vector<absl::optional<GpuReading>>& readings,
                Write write) {
  size_t i = 0;
  for (const DeviceStats& device : devices) {
    if (device.pci_bus_id.empty()) continue;
    write(device, readings[i++]);
  }
}

void WriteMemory(const std::vector<DeviceStats>& devices,
                 const GpuReadings& readings,
                 Families* out) {
  FamilyWriter memory = out->Gauge(
      "pagoda_gpu_memory_bytes",
      "Memory of the device: what its workers hold, by kind, and what nobody has taken.");
  for (const DeviceStats& device : devices) {
    const auto add = [&](const char* kind, uint64_t bytes) {
      memory.Add(static_cast<double>(bytes), LabelsOf(device, "kind", kind));
    };
    add("weights", device.weight_bytes);
    add("kv", device.kv_bytes);
    add("activations", device.activation_bytes);
    add("workspace", device.workspace_bytes);
  }
  if (!readings.has_value()) return;
  ForEachGpu(devices, *readings, [&](const DeviceStats& device, const auto& reading) {
    if (reading.has_value() && reading->free_memory_bytes.has_value())
      memory.Add(static_cast<double>(*reading->free_memory_bytes),
                 LabelsOf(device, "kind", "free"));
  });
}

void WriteReadings(const std::vector<DeviceStats>& devices,
                   const std::vector<absl::optional<GpuReading>>& readings,
                   Families* out) {
  FamilyWriter up =
      out->Gauge("pagoda_gpu_up", "1 while the GPU answers its driver's library, else 0.");
  ForEachGpu(devices, readings, [&](const DeviceStats& device, const auto& reading) {
    up.Add(reading.has_value() ? 1 : 0, LabelsOf(device));
  });
  // What a driver does not know has no sample.
  const auto write = [&](FamilyWriter family, auto value_of) {
    ForEachGpu(devices, readings, [&](const DeviceStats& device, const auto& reading) {
      if (!reading.has_value() || !value_of(*reading).has_value()) return;
      family.Add(static_cast<double>(*value_of(*reading)), LabelsOf(device));
    });
  };
  using Reading = const GpuReading&;
  write(out->Gauge("pagoda_gpu_utilization_ratio", "Share of the time in which a kernel ran."),
        [](Reading r) { return r.utilization; });
  write(out->Gauge("pagoda_gpu_memory_capacity_bytes", "All memory of the GPU."),
        [](Reading r) { return r.memory_bytes; });
  write(out->Gauge("pagoda_gpu_power_watts", "Power that the GPU draws."),
        [](Reading r) { return r.power_watts; });
  write(out->Counter("pagoda_gpu_energy_joules_total", "Energy used since the driver was loaded."),
        [](Reading r) { return r.energy_joules; });
  write(out->Gauge("pagoda_gpu_temperature_celsius", "Temperature of the GPU."),
        [](Reading r) { return r.temperature_celsius; });
  write(out->Gauge("pagoda_gpu_sm_clock_hertz", "Clock of the multiprocessors."),
        [](Reading r) { return r.sm_clock_hertz; });
  write(out->Gauge("pagoda_gpu_throttled",
                   "1 while its heat or its power makes the GPU run slower, else 0."),
        [](Reading r) { return r.is_throttled; });
  write(out->Counter("pagoda_gpu_ecc_uncorrected_errors_total",
                     "Errors of memory that could not be corrected, since the driver was loaded."),
        [](Reading r) { return r.uncorrected_ecc_errors; });
}

}  // namespace

void WriteDevices(const std::vector<DeviceStats>& devices,
                  const GpuReadings& readings,
                  Families* out) {
  FamilyWriter info = out->Gauge("pagoda_device_info", "Devices of the workers; always 1.");
  for (const DeviceStats& device : devices) {
    Labels labels = LabelsOf(device, "name", device.name);
    labels.push_back({"pci_bus_id", device.pci_bus_id});
    info.Add(1, std::move(labels));
  }
  WriteWork(devices, out);
  WriteMemory(devices, readings, out);
  if (readings.has_value()) WriteReadings(devices, *readings, out);
}

}  // namespace pagoda::daemon
