#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/server/constraint_compiler.h"
#include "daemon/server/engine_port.h"
#include "daemon/server/inference_service.h"
#include "daemon/server/output_shards.h"
#include "daemon/server/text_pool.h"
#include "daemon/server/vllm/engine_service.h"
#include "grpcpp/grpcpp.h"
#include "kernels/base/mutex.h"
#include "tests/daemon/server/fake_model.h"

namespace pagoda::daemon {

// An engine that does what the test says: keeps what is submitted and cancelled. Thread-safe.
class FakeEngine final : public EnginePort {
 public:
  absl::Status Submit(engine::Request request) override;
  void Cancel(engine::RequestKey key) override;

  // What Submit answers from now on.
  void RefuseWith(absl::Status status);
  // Waits for the next request that was accepted.
  engine::Request TakeRequest();
  size_t num_waiting() const;
  // Waits until the request has been cancelled.
  bool WaitForCancel(engine::RequestKey key);
  bool WasCancelled(engine::RequestKey key) const;

 private:
  mutable Mutex mutex_;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::deque<engine::Request> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<engine::RequestKey> cancelled_ ABSL_GUARDED_BY(mutex_);
};

class FakeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.load(); }
  void Advance(absl::Duration d) { now_ns_ += absl::ToInt64Nanoseconds(d); }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000'000};
};

// The service behind a real gRPC server, whose in-process channel completes a write only when the
// client reads it, so that a slow reader is exact.
class ServiceUnderTest {
 public:
  struct Options {
    size_t num_shards = 2;
    size_t max_stream_buffer_bytes = 1 << 20;
    size_t max_waiting_tasks = 64;
    const Clock* clock = &Clock::Monotonic();
    // An address to listen on beside the in-process channel; empty: none.
    std::string address;
    std::string model_dir;
    KvEventHub::Options kv_events;
    // Nobody waits, unless a test is about that.
    KeyGuard::Options key_guard = {.num_free = 1e9};
  };

  explicit ServiceUnderTest(Options options);
  ServiceUnderTest() : ServiceUnderTest(Options()) {}
  ~ServiceUnderTest();

  v1::InferenceService::Stub& stub() { return *stub_; }
  engine_pb::VllmEngine::Stub& engine_stub() { return *engine_stub_; }
  FakeEngine& engine() { return engine_; }
  KvEventHub& kv_events() { return *kv_events_; }
  // What the hub has asked the engine for last.
  uint64_t watch() const { return watch_.load(); }
  engine::EngineMetrics& engine_metrics() { return engine_metrics_; }
  OutputShards& shards() { return *shards_; }
  ServerMetrics& metrics() { return metrics_; }
  CallCounter& calls() { return calls_; }
  AccessControl& access() { return access_; }
  const CallServices& services() const { return services_; }
  TextPool& text_pool() { return *text_pool_; }
  const std::atomic<ServingState>& state() const { return state_; }
  std::shared_ptr<grpc::Channel> channel() {
    return server_->InProcessChannel(grpc::ChannelArguments());
  }
  const ServedModel& model() const { return model_; }
  void SetState(ServingState state) { state_.store(state); }
  // Gives one delta to the output threads.
  void Deliver(engine::OutputDelta delta);

 private:
  const ServedModel model_ = MakeFakeModel();
  FakeEngine engine_;
  ServerMetrics metrics_;
  AccessControl access_;
  LiveRequestIds request_ids_;
  CallCounter calls_;
  std::atomic<ServingState> state_{ServingState::kReady};
  std::atomic<uint64_t> watch_{0};
  engine::EngineMetrics engine_metrics_;
  ConstraintCompiler compiler_{ConstraintCompiler::Options()};
  CallServices services_;
  std::unique_ptr<OutputShards> shards_;
  std::unique_ptr<TextPool> text_pool_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<KvEventHub> kv_events_;
  std::unique_ptr<EngineService> engine_service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  std::unique_ptr<engine_pb::VllmEngine::Stub> engine_stub_;
};

// Deltas of a request, made short.
engine::OutputDelta StartedDelta(const engine::Request& request, const std::string& text);
engine::OutputDelta TextDelta(engine::RequestKey key, int32_t index, const std::string& text);
engine::OutputDelta FinishedDelta(engine::RequestKey key,
                                  int32_t index,
                                  bool last,
                                  engine::FinishReason reason = engine::FinishReason::kLength,
                                  absl::Status status = absl::OkStatus());

v1::GenerateRequest UnaryRequest(const std::string& text = "hi");
grpc::Status CallGenerate(ServiceUnderTest* service, const v1::GenerateRequest& request);

// Polls without a fixed wait; false after ten seconds.
template <typename Condition>
bool Eventually(Condition condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace pagoda::daemon
