#include "daemon/server/gpu/device_families.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "tests/daemon/server/exposition.h"

namespace pagoda::daemon {
namespace {

using pagoda::testing::Exposition;
using pagoda::testing::LintExposition;
using pagoda::testing::ParseExposition;
using pagoda::testing::Sum;
using ::testing::IsEmpty;

class DeviceFamiliesTest : public ::testing::Test {
 protected:
  DeviceFamiliesTest() {
    first_.busy_ns.Add(2'500'000'000);
    first_.collective_ns.Add(1'000'000'000);
    first_.graph_replays.Add(7);
    second_.busy_ns.Add(500'000'000);
    second_.graph_captures.Add(3);
    second_.eager_steps.Add(4);
  }
  Exposition Write(const GpuReadings& readings) const {
    Families families;
    WriteDevices(devices_, readings, &families);
    auto exposition = ParseExposition(prometheus::TextSerializer().Serialize(families.Take()));
    EXPECT_TRUE(exposition.ok()) << exposition.status();
    EXPECT_THAT(LintExposition(*exposition, {"pagoda_"}), IsEmpty());
    return *exposition;
  }

  engine::DeviceMetrics first_, second_;
  std::vector<DeviceStats> devices_ = {
      {.index = 2, .name = "NVIDIA H200", .pci_bus_id = "0000:17:00.0", .work = {&first_}},
      {.index = 5,
       .name = "NVIDIA \"H200\"",
       .pci_bus_id = "0000:2a:00.0",
       .measures_collectives = false,
       .weight_bytes = 10,
       .kv_bytes = 20,
       .activation_bytes = 30,
       .workspace_bytes = 40,
       .work = {&first_, &second_}}};
};

TEST_F(DeviceFamiliesTest, TellWhatDevicesDid) {
  const Exposition all = Write(absl::nullopt);
  EXPECT_EQ(Sum(all, "pagoda_device_info", {{"gpu", "2"}, {"pci_bus_id", "0000:17:00.0"}}), 1);
  EXPECT_EQ(Sum(all, "pagoda_gpu_busy_seconds_total", {{"gpu", "2"}}), 2.5);
  // Two workers share it.
  EXPECT_EQ(Sum(all, "pagoda_gpu_busy_seconds_total", {{"gpu", "5"}}), 3);
  EXPECT_EQ(Sum(all, "pagoda_collective_seconds_total", {{"gpu", "2"}}), 1);
  EXPECT_EQ(Sum(all, "pagoda_collective_seconds_total"), 1);
  EXPECT_EQ(Sum(all, "pagoda_cuda_graph_replays_total", {{"gpu", "5"}}), 7);
  EXPECT_EQ(Sum(all, "pagoda_cuda_graph_captures_total", {{"gpu", "5"}}), 3);
  EXPECT_EQ(Sum(all, "pagoda_cuda_eager_steps_total", {{"gpu", "5"}}), 4);
  EXPECT_EQ(Sum(all, "pagoda_gpu_memory_bytes", {{"gpu", "5"}}), 100);
  EXPECT_EQ(Sum(all, "pagoda_gpu_memory_bytes", {{"gpu", "5"}, {"kind", "workspace"}}), 40);
  EXPECT_EQ(all.count("pagoda_gpu_up"), 0u);
}

TEST_F(DeviceFamiliesTest, TellWhatGpusSay) {
  const Exposition all =
      Write(std::vector<absl::optional<GpuReading>>{absl::nullopt,
                                                    GpuReading{.utilization = 0.5,
                                                               .memory_bytes = 1000,
                                                               .free_memory_bytes = 600,
                                                               .power_watts = 300.5,
                                                               .energy_joules = 12.5,
                                                               .temperature_celsius = 61,
                                                               .sm_clock_hertz = 1.98e9,
                                                               .uncorrected_ecc_errors = 2,
                                                               .is_throttled = true}});
  EXPECT_EQ(Sum(all, "pagoda_gpu_up", {{"gpu", "2"}}), 0);
  EXPECT_EQ(Sum(all, "pagoda_gpu_up", {{"gpu", "5"}}), 1);
  EXPECT_EQ(Sum(all, "pagoda_gpu_utilization_ratio"), 0.5);
  EXPECT_EQ(Sum(all, "pagoda_gpu_memory_capacity_bytes"), 1000);
  EXPECT_EQ(Sum(all, "pagoda_gpu_memory_bytes", {{"gpu", "5"}, {"kind", "free"}}), 600);
  EXPECT_EQ(Sum(all, "pagoda_gpu_power_watts"), 300.5);
  EXPECT_EQ(Sum(all, "pagoda_gpu_energy_joules_total"), 12.5);
  EXPECT_EQ(Sum(all, "pagoda_gpu_temperature_celsius"), 61);
  EXPECT_EQ(Sum(all, "pagoda_gpu_sm_clock_hertz"), 1.98e9);
  EXPECT_EQ(Sum(all, "pagoda_gpu_ecc_uncorrected_errors_total"), 2);
  EXPECT_EQ(Sum(all, "pagoda_gpu_throttled"), 1);
}

// A CPU has nobody to ask, whatever other devices say.
TEST_F(DeviceFamiliesTest, OnlyGpusAreAsked) {
  devices_[0].pci_bus_id.clear();
  const Exposition all = Write(std::vector<absl::optional<GpuReading>>{
      GpuReading{.temperature_celsius = 61, .is_throttled = false}});
  EXPECT_EQ(Sum(all, "pagoda_gpu_up", {{"gpu", "5"}}), 1);
  EXPECT_EQ(Sum(all, "pagoda_gpu_up"), 1);
  EXPECT_EQ(Sum(all, "pagoda_gpu_temperature_celsius", {{"gpu", "5"}}), 61);
  EXPECT_EQ(all.at("pagoda_gpu_throttled").samples.size(), 1u);
  // No sample where nothing is known.
  EXPECT_TRUE(all.at("pagoda_gpu_power_watts").samples.empty());
}

}  // namespace
}  // namespace pagoda::daemon
