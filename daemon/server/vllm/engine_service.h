#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/server/generation_call.h"
#include "daemon/server/replicas/engine_metrics_sum.h"
#include "daemon/server/serving_state.h"
#include "daemon/server/text_pool.h"
#include "daemon/server/vllm/kv_event_hub.h"
#include "daemon/server/vllm/server_description.h"
#include "daemon/server/vllm/tokenizer_bundle.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace pagoda::daemon {

using EngineServiceBase = engine_pb::VllmEngine::WithRawCallbackMethod_Generate<
    engine_pb::VllmEngine::WithRawCallbackMethod_Embed<
        engine_pb::VllmEngine::WithRawCallbackMethod_HealthCheck<
            engine_pb::VllmEngine::WithRawCallbackMethod_Abort<
                engine_pb::VllmEngine::WithRawCallbackMethod_GetModelInfo<
                    engine_pb::VllmEngine::WithRawCallbackMethod_GetServerInfo<
                        engine_pb::VllmEngine::WithRawCallbackMethod_GetLoads<
                            engine_pb::VllmEngine::WithRawCallbackMethod_GetTokenizer<
                                engine_pb::VllmEngine::WithRawCallbackMethod_SubscribeKvEvents<
                                    engine_pb::VllmEngine::Service>>>>>>>>>;

// vllm.grpc.engine.VllmEngine, what inference gateways speak. As InferenceService: requests arrive
// as bytes, and those that may be long are parsed by text threads.
class EngineService final : public EngineServiceBase {
 public:
  struct Options {
    // All outlive the service. `services` need not be complete while the state is kLoading, but for
    // the model and the clock.
    const CallServices* services = nullptr;
    TextPool* text_pool = nullptr;
    const std::atomic<ServingState>* state = nullptr;
    EngineMetricsReader engine_metrics = nullptr;
    KvEventHub* kv_events = nullptr;
    std::string model_dir;
  };

  explicit EngineService(const Options& options);

  // gRPC's threads.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetTokenizer(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* SubscribeKvEvents(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override;

 private:
  ServingState state() const { return options_.state->load(std::memory_order_acquire); }
  // Once loaded, answers a caller of that class with what `handle` says: at once, so that a daemon
  // whose text threads have all hands full still takes aborts and tells its load; on a text thread
  // when the request is long.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Answer(
      AccessClass access,
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response,
      absl::StatusOr<Response> (EngineService::*handle)(const Request&, const Caller&));
  template <typename Request>
  absl::StatusOr<Request> Parse(const grpc::ByteBuffer& bytes) const;

  // ---- Any thread; quick
  absl::StatusOr<engine_pb::AbortResponse> AbortRequests(const engine_pb::AbortRequest& request,
                                                         const Caller& caller);
  absl::StatusOr<engine_pb::GetModelInfoResponse> TellModel(
      const engine_pb::GetModelInfoRequest& request, const Caller& caller);
  absl::StatusOr<engine_pb::GetServerInfoResponse> TellServer(
      const engine_pb::GetServerInfoRequest& request, const Caller& caller);
  absl::StatusOr<engine_pb::GetLoadsResponse> TellLoads(const engine_pb::GetLoadsRequest& request,
                                                        const Caller& caller);
  // ---- Text threads
  absl::StatusOr<std::shared_ptr<const TokenizerBundle>> FindBundle(
      const grpc::ByteBuffer& request_bytes);

  const Options options_;
  const int64_t start_ns_;
  const engine_pb::GetModelInfoResponse model_info_;
  std::atomic<int64_t> last_receive_unix_ns_{0};
  TokenizerBundleCache bundles_;
  ThroughputMeter throughput_;
};

}  // namespace pagoda::daemon
