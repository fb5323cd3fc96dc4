#include "tests/fakes/fake_driver.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace pagoda::kernels::cuda {

absl::StatusOr<FakeDriver> FakeDriver::Parse(absl::string_view description) {
  FakeDriver driver;
  for (const absl::string_view field : absl::StrSplit(description, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(field, absl::MaxSplits('=', 1));
    int value = 0;
    if (!absl::SimpleAtoi(pair.second, &value)) {
      return absl::InvalidArgumentError(absl::StrCat("'", field, "' is not KEY=NUMBER"));
    }
    if (pair.first == "cuda") {
      driver.cuda_version = value;
    } else if (pair.first == "devices") {
      driver.num_devices = value;
    } else if (pair.first == "capability") {
      driver.facts.name = "NVIDIA A100";
      driver.facts.major = value / 10;
      driver.facts.minor = value % 10;
    } else if (pair.first == "free_mib") {
      driver.facts.free_bytes = static_cast<uint64_t>(value) << 20;
    } else if (pair.first == "serves") {
      driver.serves = value != 0;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("'", pair.first, "' is no key"));
    }
  }
  return driver;
}

absl::StatusOr<DeviceFacts> FakeDriver::Select(int device_index) {
  selected = device_index;
  return facts;
}

}  // namespace pagoda::kernels::cuda
