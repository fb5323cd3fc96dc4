#pragma once

#include "absl/status/status.h"
#include "tests/kernels/cuda/group_transport.h"

namespace pagoda::kernels::cuda::test {

// Every op against a reference in double precision, over sizes, types and alignments: each case is
// a line. Returns an error if one failed. `quick`: few sizes.
absl::Status RunOpCases(Rank& rank, Transport transport, bool quick);

// Each in ranks of its own, since a group is of no use afterwards.
// A rank that comes late is waited for.
absl::Status RunLateRank(Rank& rank, Transport transport);
// Abort while another rank does not come.
absl::Status RunAbort(Rank& rank, Transport transport);
// The last rank is killed between two replays of a graph; the others end within bounded time.
absl::Status RunKilledRank(Rank& rank, Transport transport);

}  // namespace pagoda::kernels::cuda::test
