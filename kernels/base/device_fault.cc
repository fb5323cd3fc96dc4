#include "kernels/base/device_fault.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace pagoda {
namespace {

constexpr char kPayloadUrl[] = "pagoda/device_fault";

}  // namespace

absl::Status WithDeviceFault(absl::Status status, DeviceFault fault) {
  if (!status.ok() && fault != DeviceFault::kNone) {
    status.SetPayload(kPayloadUrl, absl::Cord(absl::StrCat(static_cast<int>(fault))));
  }
  return status;
}

DeviceFault DeviceFaultOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  int value = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &value)) {
    return DeviceFault::kNone;
  }
  const bool known = value > 0 && value <= static_cast<int>(DeviceFault::kNoMemory);
  return known ? static_cast<DeviceFault>(value) : DeviceFault::kNone;
}

}  // namespace pagoda
