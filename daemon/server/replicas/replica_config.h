#pragma once

#include <cstddef>

#include "pagoda/internal/v1/config.pb.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::daemon {

size_t NumReplicas(const internal::v1::ServerConfig& config);

// What one of several replicas runs with: its part of the devices, of the memory that
// --kv-cache-memory names where they share a device, and of the queue's bounds, which are those of
// the daemon. Of one replica the configuration as it is. Pure.
internal::v1::ServerConfig ConfigOfReplica(const internal::v1::ServerConfig& config,
                                           size_t replica);

// What the replica's worker says of its device, of which others use as much.
internal::v1::WorkerHello ShareOfReplica(const internal::v1::ServerConfig& config,
                                         internal::v1::WorkerHello hello);

}  // namespace pagoda::daemon
