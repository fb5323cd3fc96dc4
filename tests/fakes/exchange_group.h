#pragma once

#include <memory>

#include "kernels/device_group.h"

namespace pagoda::kernels {

// A group of devices whose memory is the host's, over nothing but options.exchange: simple loops
// instead of kernels, AllReduceNorm among them.
std::unique_ptr<DeviceGroup> MakeExchangeGroup(const DeviceGroupOptions& options);

}  // namespace pagoda::kernels
