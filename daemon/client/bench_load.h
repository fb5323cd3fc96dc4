#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/client/bench_options.h"
#include "daemon/client/bench_plan.h"
#include "daemon/client/bench_stats.h"
#include "grpcpp/channel.h"
#include "kernels/base/clock.h"

namespace pagoda::daemon {

// What has happened so far, for a line of progress. Written by the threads of the load.
struct BenchProgress {
  std::atomic<int64_t> num_started{0}, num_ended{0}, num_output_tokens{0};
};

// What one load consists of.
struct BenchLoad {
  const BenchOptions& options;
  IdRange ids;
  std::vector<std::shared_ptr<grpc::Channel>> channels;  // not empty, but for HTTP
  int64_t first_index = 0;
  int64_t num_requests = 0;
  // When each request leaves, after the start; empty: a closed loop.
  std::vector<int64_t> departures_ns;
  // Set from outside to end early: calls are cancelled and no more are made.
  const std::atomic<bool>* interrupted = nullptr;
  BenchProgress* progress = nullptr;  // when somebody looks
  const Clock* clock = &Clock::Monotonic();
};

struct LoadOutcome {
  std::vector<RequestOutcome> requests;  // in no order; without those that never left
  ClientLoad client;
};

// Puts the load on the daemon and returns when every request has ended. Threads have a completion
// queue each, so that their number, not that of the requests, is what the client costs.
LoadOutcome RunLoad(const BenchLoad& load);

}  // namespace pagoda::daemon
