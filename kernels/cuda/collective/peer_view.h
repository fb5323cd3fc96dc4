#pragma once

#include <cstdint>

#include "kernels/cuda/collective/collective_plan.h"

// What kernels of a collective know of the ranks: addresses that never change, so that graphs may
// hold them.

namespace pagoda::kernels::cuda {

// Why a collective gave up; 0: it did not.
enum class CollectiveFault : uint32_t {
  kNone = 0,
  kTimeout = 1,  // a rank did not come
  kAborted = 2,  // Abort was called here
  kTold = 3,     // another rank gave up, and told
};

// In the memory of each rank's device, at the start of what it shares.
struct PeerControl {
  // A CollectiveFault and the rank it is about: fault | rank << 8. Whoever sets it first decides;
  // peers set it too.
  uint32_t failure;
  // 1: the host was told.
  uint32_t reported;
  // When a thread last asked the host whether to go on.
  uint32_t asked_host_ms;
  // Number of reductions so far: one value, kept once a block so that a block needs no other.
  uint32_t epochs[kMaxReduceBlocks];
  // Number of pieces that a block of gathers has sent.
  uint32_t pieces[kNumGatherBlocks];
  // Written by peers: the number of the last piece that is there, from each sender.
  uint32_t arrived[kNumGatherBlocks][kMaxRanks];
};

// In pinned memory of the host.
struct HostControl {
  // Written by the device; `failure` last.
  uint32_t failure;  // as in PeerControl
  uint32_t epoch;
  // Written by the host: 1 makes every wait end.
  uint32_t abort;
};

struct PeerView {
  int rank = 0;
  int num_ranks = 1;
  uint64_t timeout_ns = 0;
  HostControl* host = nullptr;
  // By rank, as addresses of this process; [rank] is this one's own.
  PeerControl* controls[kMaxRanks] = {};
  char* reduce_slots[kMaxRanks] = {};  // two parities
  char* gather_slots[kMaxRanks] = {};  // two parities
  uint64_t reduce_parity_bytes = 0;
  uint64_t gather_parity_bytes = 0;
  uint64_t gather_piece_bytes = 0;
};

}  // namespace pagoda::kernels::cuda
