#include "daemon/server/replicas/replica_choice.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace pagoda::daemon {
namespace {

int64_t FewestSequences(absl::Span<const ReplicaView> replicas) {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const ReplicaView& view : replicas) {
    if (view.may_take) fewest = std::min(fewest, view.num_sequences);
  }
  return fewest;
}

// Less is better.
auto RankOf(const ReplicaView& view, int64_t fewest) {
  const int64_t cost =
      view.num_sequences - fewest - static_cast<int64_t>(view.num_prompt_blocks_cached);
  return std::tuple(cost, view.num_sequences, view.num_tenant_sequences, view.num_blocks_cached);
}

}  // namespace

absl::optional<size_t> ChooseReplica(absl::Span<const ReplicaView> replicas) {
  const int64_t fewest = FewestSequences(replicas);
  const int64_t most = fewest == std::numeric_limits<int64_t>::max()
                           ? fewest
                           : fewest + std::max(kMaxBusier, fewest / kMaxBusierDivisor);
  absl::optional<size_t> best;
  for (size_t i = 0; i < replicas.size(); ++i) {
    const ReplicaView& view = replicas[i];
    if (!view.may_take || view.num_sequences > most) continue;
    if (!best.has_value() || RankOf(view, fewest) < RankOf(replicas[*best], fewest)) best = i;
  }
  return best;
}

}  // namespace pagoda::daemon
