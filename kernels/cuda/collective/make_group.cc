#include "kernels/cuda/collective/make_group.h"

#include <algorithm>
#include <cstring>
#include <cuda_runtime_api.h>
#include <optional>
#include <type_traits>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/collective/group_error.h"
#include "kernels/cuda/collective/ipc_group.h"
#include "kernels/cuda/collective/nccl_group.h"
#include "kernels/cuda/cuda_error.h"

namespace pagoda::kernels::cuda {
namespace {

// Where a rank's device is, the same in every process whatever that sees of the machine.
struct DevicePlace {
  char bus_id[32] = {};

  bool operator==(const DevicePlace& other) const {
    return std::memcmp(bus_id, other.bus_id, sizeof(bus_id)) == 0;
  }
};
static_assert(std::is_trivially_copyable_v<DevicePlace>);

bool HasAccess(int own_device, const DevicePlace& peer) {
  int device = 0, has_access = 0;
  const bool is_known = cudaDeviceGetByPCIBusId(&device, peer.bus_id) == cudaSuccess &&
                        cudaDeviceCanAccessPeer(&has_access, own_device, device) == cudaSuccess;
  // A device that this process may not see is no error of the device that it uses.
  if (!is_known) (void)cudaGetLastError();
  return is_known && has_access != 0;
}

// The first rank whose memory this one's device does not reach.
std::optional<int> FirstOutOfReach(const DeviceContext& context,
                                   int rank,
                                   const std::vector<DevicePlace>& places) {
  for (size_t peer = 0; peer < places.size(); ++peer) {
    if (places[peer] == places[rank] || HasAccess(context.device_index, places[peer])) continue;
    return static_cast<int>(peer);
  }
  return std::nullopt;
}

absl::Status CheckOneRankADevice(const std::vector<DevicePlace>& places) {
  for (size_t rank = 0; rank < places.size(); ++rank) {
    for (size_t other = rank + 1; other < places.size(); ++other) {
      if (!(places[rank] == places[other])) continue;
      return SharedDeviceError(
          static_cast<int>(rank), static_cast<int>(other), places[rank].bus_id);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeGroup(const DeviceContext& context,
                                                       const DeviceGroupOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckGroupOptions(options, kMaxRanks));
  DevicePlace own;
  PAGODA_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetPCIBusId(own.bus_id, sizeof(own.bus_id), context.device_index),
                 "cudaDeviceGetPCIBusId",
                 context.label));
  std::vector<DevicePlace> places(options.num_ranks);
  PAGODA_RETURN_IF_ERROR(options.exchange(&own, places.data(), sizeof(own)));
  const int32_t out_of_reach =
      FirstOutOfReach(context, options.rank, places).value_or(options.num_ranks);
  std::vector<int32_t> all_out_of_reach(options.num_ranks);
  PAGODA_RETURN_IF_ERROR(
      options.exchange(&out_of_reach, all_out_of_reach.data(), sizeof(out_of_reach)));
  const auto blind = std::find_if(all_out_of_reach.begin(), all_out_of_reach.end(), [&](int peer) {
    return peer < options.num_ranks;
  });
  const bool all_reach = blind == all_out_of_reach.end();
  if (options.transport == GroupTransport::kNccl ||
      (options.transport == GroupTransport::kAuto && !all_reach)) {
    PAGODA_RETURN_IF_ERROR(CheckOneRankADevice(places));
    return MakeNcclGroup(context, options);
  }
  if (all_reach) return MakeIpcGroup(context, options);
  return NoAccessError(static_cast<int>(blind - all_out_of_reach.begin()), *blind);
}

}  // namespace pagoda::kernels::cuda
