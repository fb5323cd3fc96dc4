#pragma once

#include <memory>

#include "kernels/device_group.h"
#include "parallel/process_group.h"

namespace pagoda::engine {

// The group of backends whose memory is the host's: ops have run when they return. `host` outlives
// it.
std::unique_ptr<kernels::DeviceGroup> MakeHostGroup(parallel::ProcessGroup& host);

}  // namespace pagoda::engine
