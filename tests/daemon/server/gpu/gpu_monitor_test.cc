#include "daemon/server/gpu/gpu_monitor.h"

#include <dlfcn.h>
#include <functional>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(10);

// Stands still until it is told the time.
class HandClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.load(); }
  void Advance(absl::Duration by) { now_ns_.fetch_add(absl::ToInt64Nanoseconds(by)); }

 private:
  std::atomic<int64_t> now_ns_{1};
};

// The library is opened once more, so that it stays from one monitor to the next.
class GpuMonitorTest : public ::testing::Test {
 protected:
  GpuMonitorTest() : library_(dlopen(PAGODA_FAKE_NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL)) {
    set_ = reinterpret_cast<void (*)(const char*)>(dlsym(library_, "fake_nvml_set"));
    num_calls_ = reinterpret_cast<int (*)()>(dlsym(library_, "fake_nvml_num_calls"));
  }
  ~GpuMonitorTest() override {
    set_("");
    monitor_.reset();
    dlclose(library_);
  }
  void Watch(std::vector<std::string> pci_bus_ids) {
    monitor_.emplace(GpuMonitor::Options{.pci_bus_ids = std::move(pci_bus_ids),
                                         .library = PAGODA_FAKE_NVML_LIBRARY,
                                         .interval = absl::Milliseconds(1),
                                         .clock = &clock_});
  }
  using Readings = std::vector<absl::optional<GpuReading>>;
  static bool Eventually(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }
  // Once they are as expected.
  bool Await(const std::function<bool(const Readings&)>& is_expected) {
    return Eventually([&] {
      const auto readings = monitor_->Readings();
      return readings.has_value() && is_expected(*readings);
    });
  }

  void* const library_;
  void (*set_)(const char*);
  int (*num_calls_)();
  HandClock clock_;
  absl::optional<GpuMonitor> monitor_;
};

TEST_F(GpuMonitorTest, ReadsTheGpusThatAreUsed) {
  Watch({"0000:00:02.0", "0000:00:01.0"});
  ASSERT_TRUE(Await([](const Readings& r) { return r.size() == 2 && r[0] && r[1]; }));
  const GpuReading reading = **(*monitor_->Readings()).begin();
  EXPECT_EQ(reading.utilization, 0.51);
  EXPECT_EQ(reading.memory_bytes, uint64_t{80} << 30);
  EXPECT_EQ(reading.free_memory_bytes, uint64_t{30} << 30);
  EXPECT_DOUBLE_EQ(*reading.power_watts, 300.001);
  EXPECT_GT(*reading.energy_joules, 7500.0);
  EXPECT_EQ(reading.temperature_celsius, 61);
  EXPECT_EQ(reading.sm_clock_hertz, 1.98e9);
  EXPECT_EQ(reading.uncorrected_ecc_errors, 2u);
  EXPECT_EQ(reading.is_throttled, false);
  set_("throttled");
  EXPECT_TRUE(Await([](const Readings& r) { return r[0] && r[0]->is_throttled == true; }));
}

TEST_F(GpuMonitorTest, WhatIsNotSupportedIsAbsent) {
  Watch({"0000:00:01.0"});
  set_("unsupported");
  ASSERT_TRUE(Await([](const Readings& r) { return r[0] && !r[0]->utilization; }));
  const GpuReading reading = *monitor_->Readings()->front();
  EXPECT_FALSE(reading.memory_bytes || reading.power_watts || reading.is_throttled);
}

TEST_F(GpuMonitorTest, ALostGpuHasNoReadingTheOthersHave) {
  Watch({"0000:00:01.0", "0000:00:02.0", "0000:00:1f.0"});
  ASSERT_TRUE(Await([](const Readings& r) { return r[0] && r[1] && !r[2]; }));
  ::testing::internal::CaptureStderr();
  set_("lost=1");
  EXPECT_TRUE(Await([](const Readings& r) { return r[0] && !r[1]; }));
  set_("");
  EXPECT_TRUE(Await([](const Readings& r) { return r[0] && r[1]; }));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("GPU 0000:00:02.0 does not answer: GPU is lost"));
  EXPECT_THAT(log, HasSubstr("GPU 0000:00:02.0 answers again"));
}

TEST_F(GpuMonitorTest, ACallThatHangsStallsNobody) {
  Watch({"0000:00:01.0"});
  ASSERT_TRUE(Await([](const Readings& r) { return r[0].has_value(); }));
  set_("hang");
  const int num_calls = num_calls_();
  ASSERT_TRUE(Eventually([&] { return num_calls_() > num_calls; }));
  // What was read is told while it can be true, then that the GPU does not answer.
  const absl::Time start = absl::Now();
  EXPECT_TRUE(Await([](const Readings& r) { return r[0].has_value(); }));
  clock_.Advance(absl::Milliseconds(5));
  EXPECT_TRUE(Await([](const Readings& r) { return !r[0].has_value(); }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  set_("");
  EXPECT_TRUE(Await([](const Readings& r) { return r[0].has_value(); }));
}

// Nor does it keep the daemon from ending.
TEST_F(GpuMonitorTest, EndsWhileACallHangs) {
  Watch({"0000:00:01.0"});
  ASSERT_TRUE(Await([](const Readings& r) { return r[0].has_value(); }));
  set_("hang");
  const int num_calls = num_calls_();
  ASSERT_TRUE(Eventually([&] { return num_calls_() > num_calls; }));
  const absl::Time start = absl::Now();
  monitor_.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(GpuMonitorTest, SaysOnceWhyThereAreNoFigures) {
  for (const auto& [library, words, why] :
       std::vector<std::tuple<std::string, const char*, const char*>>{
           {"/no/such/libnvidia-ml.so.1", "", "/no/such/libnvidia-ml.so.1: cannot open"},
           {PAGODA_FAKE_NVML_LIBRARY, "no_driver", ": Driver Not Loaded"}}) {
    ::testing::internal::CaptureStderr();
    setenv("PAGODA_FAKE_NVML", words, 1);
    monitor_.emplace(
        GpuMonitor::Options{.pci_bus_ids = {"0000:00:01.0"}, .library = library, .clock = &clock_});
    // Also before it is known.
    EXPECT_FALSE(monitor_->Readings().has_value());
    monitor_.reset();
    unsetenv("PAGODA_FAKE_NVML");
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("no figures of GPUs in the metrics: "));
    EXPECT_THAT(log, HasSubstr(why));
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
  }
}

TEST_F(GpuMonitorTest, WithoutGpusNothingIsOpened) {
  monitor_.emplace(GpuMonitor::Options{.pci_bus_ids = {}, .library = "/no/such"});
  EXPECT_FALSE(monitor_->Readings().has_value());
}

}  // namespace
}  // namespace pagoda::daemon
