#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "parallel/process_group.h"
#include "parallel/unique_fd.h"

namespace pagoda::parallel {

// Memory that the ranks of a ShmGroup share: anonymous, so that nothing is left when the last of
// them is gone. The daemon makes it, every worker inherits the descriptor.
absl::StatusOr<UniqueFd> MakeShmGroupMemory(int num_ranks);

// The ranks of a model on one machine's CPUs. Data goes through the shared memory in pieces, in two
// buffers by turns, so that a piece costs one wait for the others. Every rank adds in order of
// rank: the same bits everywhere. A rank that waits spins for less than 100 us, then sleeps. Abort
// is told to every rank. INVALID_ARGUMENT when the memory is not that of so many ranks.
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeShmGroup(const UniqueFd& memory,
                                                           int rank,
                                                           int num_ranks);

// The same for ranks that are threads of one process, by rank.
absl::StatusOr<std::vector<std::unique_ptr<ProcessGroup>>> MakeThreadGroups(int num_ranks);

// The rank for which the others of a group wait: it has come less far than all of them. Absent when
// there is no such rank, or when the memory cannot be read.
absl::optional<int> FindLastRank(const UniqueFd& memory, int num_ranks);

}  // namespace pagoda::parallel
