#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "daemon/server/served_model.h"
#include "daemon/server/serving_state.h"
#include "engine/metrics.h"
#include "kernels/base/mutex.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

// What the engine protocol tells of the daemon: pure but for the files that are read.
namespace pagoda::daemon {

namespace engine_pb = ::vllm::grpc::engine;

engine_pb::HealthCheckResponse DescribeHealth(ServingState state);

// config.json is read for what the engine does not know; what cannot be read stays empty.
engine_pb::GetModelInfoResponse DescribeForGateway(const ServedModel& model,
                                                   const std::string& model_dir);

engine_pb::SchedulerLoad DescribeLoad(const engine::EngineMetrics& metrics,
                                      const ServedModel& model);

// Tokens a second over the last seconds, from counts at the times when somebody asks; over the time
// since it was asked last when that is longer. Thread-safe.
class ThroughputMeter {
 public:
  explicit ThroughputMeter(int64_t now_ns) : samples_({{now_ns, 0}}) {}

  // `count` does not shrink from call to call.
  double Rate(int64_t now_ns, uint64_t count);

 private:
  struct Sample {
    int64_t time_ns = 0;
    uint64_t count = 0;
  };

  Mutex mutex_;
  // Oldest first: one from before the window, the others within. Not empty.
  std::deque<Sample> samples_ ABSL_GUARDED_BY(mutex_);
  double rate_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace pagoda::daemon
