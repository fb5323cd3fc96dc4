#pragma once

#include <cstdint>
#include <memory>

#include "kernels/device_group.h"
#include "parallel/process_group.h"

namespace pagoda::engine {

// The group of backends whose memory is the host's: ops have run when they return. Adds the time
// that they take to `*op_ns`, which outlives it like `host`.
std::unique_ptr<kernels::DeviceGroup> MakeHostGroup(parallel::ProcessGroup& host, int64_t* op_ns);

}  // namespace pagoda::engine
