#include "engine/model/kv_pool_fit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/device_fault.h"

namespace pagoda::engine {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Kernels that no step so far has used, and small lists that grow with requests.
constexpr uint64_t kLaterBytes = 96 * kMiB;
// Drivers take memory in pieces of 2 MiB, so that a graph may have seemed to take none.
constexpr uint64_t kLeastGraphBytes = kMiB;
// Several times what any has been seen to take: another process that takes memory while one is
// recorded would make it seem huge.
constexpr uint64_t kMostGraphBytes = 16 * kMiB;

uint64_t Less(uint64_t bytes, uint64_t taken) { return bytes - std::min(bytes, taken); }

}  // namespace

uint64_t KeptFreeBytes(const MeasuredMemory& memory) {
  // What others on the device take at the same time would be taken for the graph's.
  const uint64_t graph_bytes =
      memory.num_sharing > 1 ? kMostGraphBytes
                             : std::clamp(memory.graph_bytes, kLeastGraphBytes, kMostGraphBytes);
  return kLaterBytes + memory.slack_bytes +
         graph_bytes * static_cast<uint64_t>(std::max(memory.num_graphs, 0));
}

uint64_t KvPoolBytesThatFit(const MeasuredMemory& memory) {
  const auto limit =
      static_cast<uint64_t>(memory.utilization * static_cast<double>(memory.total_bytes));
  const uint64_t taken = Less(memory.free_at_first_bytes, memory.free_bytes);
  const uint64_t left = std::min(memory.free_bytes, Less(limit, taken));
  return Less(left / static_cast<uint64_t>(memory.num_sharing), KeptFreeBytes(memory));
}

absl::Status NoKvBlockFits(uint64_t block_bytes, const MeasuredMemory& memory) {
  return WithDeviceFault(absl::ResourceExhaustedError(absl::StrCat(
                             "no KV block of ",
                             block_bytes,
                             " bytes fits: ",
                             memory.free_bytes,
                             " bytes of the device are free, of which ",
                             KeptFreeBytes(memory),
                             " are kept for graphs, and this process may take ",
                             memory.utilization,
                             " of ",
                             memory.total_bytes,
                             " bytes; lower --max-num-batched-tokens or --max-num-seqs, raise "
                             "--gpu-memory-utilization, or free memory")),
                         DeviceFault::kNoMemory);
}

}  // namespace pagoda::engine
