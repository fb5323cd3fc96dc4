#include "parallel/rank_sums.h"

#include <algorithm>

namespace pagoda::parallel {

using internal::v1::DeviceWork;
using internal::v1::ModelReady;
using internal::v1::WorkerHello;

void AddHello(const WorkerHello& hello, bool first, WorkerHello* all) {
  if (all->pid() == 0) {
    *all = hello;
    return;
  }
  const uint64_t total_bytes = std::min(all->total_memory_bytes(), hello.total_memory_bytes());
  const uint64_t free_bytes = std::min(all->free_memory_bytes(), hello.free_memory_bytes());
  if (first) *all = hello;
  all->set_total_memory_bytes(total_bytes);
  all->set_free_memory_bytes(free_bytes);
}

void AddReady(const ModelReady& ready, bool first, ModelReady* all) {
  all->set_weight_bytes(all->weight_bytes() + ready.weight_bytes());
  all->set_activation_bytes(all->activation_bytes() + ready.activation_bytes());
  all->set_kv_bytes(all->kv_bytes() + ready.kv_bytes());
  all->set_num_kv_blocks(first ? ready.num_kv_blocks()
                               : std::min(all->num_kv_blocks(), ready.num_kv_blocks()));
  all->set_taken_bytes(all->taken_bytes() + ready.taken_bytes());
  all->set_kept_free_bytes(all->kept_free_bytes() + ready.kept_free_bytes());
  all->set_read_seconds(std::max(all->read_seconds(), ready.read_seconds()));
  all->set_warmup_seconds(std::max(all->warmup_seconds(), ready.warmup_seconds()));
}

void AddWork(const DeviceWork& work, DeviceWork* sum) {
  sum->set_busy_ns(sum->busy_ns() + work.busy_ns());
  sum->set_collective_ns(sum->collective_ns() + work.collective_ns());
  sum->set_graph_replays(sum->graph_replays() + work.graph_replays());
  sum->set_graph_captures(sum->graph_captures() + work.graph_captures());
  sum->set_eager_steps(sum->eager_steps() + work.eager_steps());
}

}  // namespace pagoda::parallel
