#include "daemon/server/replicas/replica_config.h"

#include <algorithm>

namespace pagoda::daemon {
namespace {

using internal::v1::EngineConfig;
using internal::v1::ServerConfig;
using internal::v1::WorkerConfig;

// Replicas on a cpu have one memory; on cuda each has GPUs of its own.
bool ShareMemory(const ServerConfig& config) { return config.worker().device() == "cpu"; }

}  // namespace

size_t NumReplicas(const ServerConfig& config) {
  return std::max<size_t>(config.worker().replicas(), 1);
}

ServerConfig ConfigOfReplica(const ServerConfig& config, size_t replica) {
  ServerConfig own = config;
  const size_t num_replicas = NumReplicas(config);
  if (num_replicas == 1) return own;
  EngineConfig* const engine = own.mutable_engine();
  if (ShareMemory(config)) {
    engine->set_kv_cache_memory_bytes(engine->kv_cache_memory_bytes() / num_replicas);
  }
  const auto part = [num_replicas](uint64_t whole) {
    return (whole + num_replicas - 1) / num_replicas;
  };
  engine->set_max_waiting_requests(static_cast<uint32_t>(part(engine->max_waiting_requests())));
  engine->set_max_waiting_tokens(part(engine->max_waiting_tokens()));
  WorkerConfig* const worker = own.mutable_worker();
  worker->clear_devices();
  const size_t num_devices = static_cast<size_t>(config.worker().devices_size()) / num_replicas;
  for (size_t i = 0; i < num_devices; ++i) {
    worker->add_devices(config.worker().devices(static_cast<int>(replica * num_devices + i)));
  }
  return own;
}

internal::v1::WorkerHello ShareOfReplica(const ServerConfig& config,
                                         internal::v1::WorkerHello hello) {
  if (!ShareMemory(config)) return hello;
  const size_t num_replicas = NumReplicas(config);
  hello.set_total_memory_bytes(hello.total_memory_bytes() / num_replicas);
  hello.set_free_memory_bytes(hello.free_memory_bytes() / num_replicas);
  return hello;
}

}  // namespace pagoda::daemon
