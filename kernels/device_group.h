#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/ops/collective.h"

namespace pagoda::kernels {

// The devices that compute one model together, seen from one of them. Ops are collective: every
// rank makes the same calls in the same order with the same sizes. They are ordered with the ops of
// this rank's device, return before they have run, and can be recorded into a graph, as long as
// every rank records and replays the same. Results have the same bits on every rank.
//
// A rank that is lost never stops a device for ever: ops that wait for it end when this rank calls
// Abort, those over peers' memory after a while by themselves too. What they would have written is
// then undefined, so results count only once they have run and Poll is OK; after any other status
// the group is of no more use.
// Thread-compatible, but for Abort.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;
  // What carries the data, such as "ipc".
  virtual absl::string_view transport() const = 0;
  // Ranks that share this one's device, itself among them. They take turns on it, so that times
  // mean little.
  virtual int ranks_on_device() const { return 1; }

  virtual absl::Status AllReduceSum(const AllReduceParams& params) = 0;
  // Whether AllReduceNorm takes these params; AllReduceSum and separate ops always work.
  virtual bool SupportsAllReduceNorm(const AllReduceNormParams& params) const = 0;
  virtual absl::Status AllReduceNorm(const AllReduceNormParams& params) = 0;
  virtual absl::Status AllGather(const AllGatherParams& params) = 0;
  virtual absl::Status Broadcast(const BroadcastParams& params) = 0;

  // What became of the ops that have run so far: OK; ABORTED after an Abort, of this rank or of
  // one that told the others; UNAVAILABLE naming the rank that was waited for in vain, or what the
  // transport said. Asks no device.
  virtual absl::Status Poll() = 0;
  // Makes ops that wait for other ranks give up, and every later call return ABORTED. Thread-safe.
  virtual void Abort() = 0;
};

enum class GroupTransport : int {
  kAuto = 0,  // kIpc where every rank's device reaches the others' memory, else kNccl
  kIpc = 1,   // stores to the memory of the others
  kNccl = 2,  // a device for each rank
};

struct DeviceGroupOptions {
  GroupTransport transport = GroupTransport::kAuto;
  int rank = 0;
  int num_ranks = 1;
  // `all` (num_ranks * num_bytes) becomes every rank's `own` (num_bytes) in order of rank, in
  // memory of the host: how ranks tell each other where their memory is. Used while the group is
  // made, not later.
  std::function<absl::Status(const void* own, void* all, size_t num_bytes)> exchange;
  // How long the making of a group, and an op over peers' memory, wait for another rank. Far more
  // than any rank is ever late: whoever watches over the ranks finds a lost one sooner, and aborts.
  int64_t timeout_ns = 60'000'000'000;
};

}  // namespace pagoda::kernels
