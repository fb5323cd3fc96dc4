#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "parallel/process_group.h"

namespace pagoda::parallel {

// Copies within the memory of one backend.
using CopyFn = std::function<absl::Status(void* to, const void* from, size_t num_bytes)>;

// The group of a model on one device: no call waits for anybody.
std::unique_ptr<ProcessGroup> MakeSingleGroup(CopyFn copy);

}  // namespace pagoda::parallel
