#pragma once

#include <vector>

#include "daemon/server/family_writer.h"
#include "daemon/server/metrics_collector.h"

namespace pagoda::daemon {

// The pagoda_replica_* families, which have a label "replica"; none where `replicas` is empty. What
// other families say is said of all replicas together.
void WriteReplicas(const std::vector<ReplicaStats>& replicas, Families* out);

}  // namespace pagoda::daemon
