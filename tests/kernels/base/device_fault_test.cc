#include "kernels/base/device_fault.h"

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace pagoda {
namespace {

TEST(DeviceFaultTest, TravelsWithAStatus) {
  const absl::Status plain = absl::NotFoundError("no driver");
  EXPECT_EQ(DeviceFaultOf(plain), DeviceFault::kNone);
  const absl::Status marked = WithDeviceFault(plain, DeviceFault::kNoDriver);
  EXPECT_EQ(DeviceFaultOf(marked), DeviceFault::kNoDriver);
  EXPECT_EQ(marked.code(), plain.code());
  EXPECT_EQ(marked.message(), plain.message());
}

TEST(DeviceFaultTest, OkAndForeignPayloadsHaveNone) {
  EXPECT_TRUE(WithDeviceFault(absl::OkStatus(), DeviceFault::kNoMemory).ok());
  EXPECT_EQ(DeviceFaultOf(absl::OkStatus()), DeviceFault::kNone);
  absl::Status foreign = absl::InternalError("x");
  foreign.SetPayload("pagoda/device_fault", absl::Cord("99"));
  EXPECT_EQ(DeviceFaultOf(foreign), DeviceFault::kNone);
  foreign.SetPayload("pagoda/device_fault", absl::Cord("text"));
  EXPECT_EQ(DeviceFaultOf(foreign), DeviceFault::kNone);
}

}  // namespace
}  // namespace pagoda
