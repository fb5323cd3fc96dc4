#include "kernels/cuda/device_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/device_fault.h"
#include "tests/fakes/fake_driver.h"

namespace pagoda::kernels::cuda {
namespace {

using testing::HasSubstr;

constexpr ProbeOptions Options(int device_index = 0) {
  return {
      .device_index = device_index, .needed_cuda_version = 13000, .least_free_bytes = 256 << 20};
}

class DeviceProbeTest : public testing::Test {
 protected:
  void ExpectFault(DeviceFault fault, const std::string& text, ProbeOptions options = Options()) {
    const absl::Status status = ProbeDevice(driver_, options).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(DeviceFaultOf(status), fault) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  FakeDriver driver_;
};

TEST_F(DeviceProbeTest, OpensWhatItHasKernelsFor) {
  driver_.num_devices = 4;
  driver_.facts.num_sms = 132;
  const auto facts = ProbeDevice(driver_, Options(2));
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->num_sms, 132);
  EXPECT_EQ(driver_.selected, 2);
  // A later driver is as good.
  driver_.cuda_version = 14010;
  EXPECT_TRUE(ProbeDevice(driver_, Options()).ok());
}

TEST_F(DeviceProbeTest, NoDriver) {
  driver_.cuda_version = 0;
  driver_.num_devices = 0;
  ExpectFault(DeviceFault::kNoDriver, "no NVIDIA driver was found");
}

TEST_F(DeviceProbeTest, OldDriver) {
  driver_.cuda_version = 12040;
  ExpectFault(
      DeviceFault::kOldDriver,
      "the NVIDIA driver supports CUDA 12.4, but this build needs CUDA 13.0: install driver");
}

TEST_F(DeviceProbeTest, NoDevice) {
  driver_.num_devices = 0;
  ExpectFault(DeviceFault::kNoDevice, "the NVIDIA driver sees no GPU: check nvidia-smi");
  ProbeOptions options = Options();
  options.visible_devices = "7";
  ExpectFault(DeviceFault::kNoDevice, "sees no GPU (CUDA_VISIBLE_DEVICES=7)", options);
}

TEST_F(DeviceProbeTest, NoDeviceOfThatNumber) {
  driver_.num_devices = 2;
  ExpectFault(DeviceFault::kNoDevice,
              "GPU 2 does not exist: the driver shows 2, numbered from 0",
              Options(2));
  ExpectFault(DeviceFault::kNoDevice, "GPU -1 does not exist", Options(-1));
  EXPECT_EQ(driver_.selected, -1);
}

TEST_F(DeviceProbeTest, OldOrOtherDevice) {
  driver_.facts.name = "NVIDIA A100";
  driver_.facts.major = 8;
  ExpectFault(DeviceFault::kOldDevice, "NVIDIA A100 has compute capability 8.0");
  ExpectFault(DeviceFault::kOldDevice, "the GPU is too old");
  driver_.facts.name = "NVIDIA B200";
  driver_.facts.major = 10;
  ExpectFault(
      DeviceFault::kOldDevice,
      "has compute capability 10.0; this build has kernels for 9.0 (NVIDIA H100, H200) only");
}

TEST_F(DeviceProbeTest, MemoryThatOthersHold) {
  driver_.facts.free_bytes = 100 << 20;
  ExpectFault(DeviceFault::kNoMemory,
              "268435456 bytes of device memory for kernels and workspaces could not be had");
}

}  // namespace
}  // namespace pagoda::kernels::cuda
