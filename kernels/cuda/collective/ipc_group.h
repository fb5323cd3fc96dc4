#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/collective/collective_plan.h"
#include "kernels/cuda/device_context.h"
#include "kernels/device_group.h"

namespace pagoda::kernels::cuda {

// A group over memory that the ranks' devices write directly: each op is one launch (large ones a
// few) that involves no host, at addresses that never change. Two to eight ranks of one host, also
// several on one device. All-reduce takes one trip or two, by ranks and size (ChooseShots).
//
// Every rank calls it, on the thread of its device; it ends with a sum that shows that each reaches
// the others. The context must outlive the group.
absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeIpcGroup(const DeviceContext& context,
                                                          const DeviceGroupOptions& options);

// The same with one kind of reduction only, for tests and benchmarks.
absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeIpcGroup(const DeviceContext& context,
                                                          const DeviceGroupOptions& options,
                                                          Shots shots);

}  // namespace pagoda::kernels::cuda
