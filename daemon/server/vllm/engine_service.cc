#include "daemon/server/vllm/engine_service.h"

#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/server/inference_service.h"
#include "daemon/server/message_bytes.h"
#include "daemon/server/request_fields.h"
#include "daemon/server/rpc_error.h"
#include "daemon/server/rpc_routes.h"
#include "daemon/server/vllm/generate_call.h"
#include "daemon/server/vllm/kv_event_stream.h"
#include "daemon/server/vllm/tokenizer_stream.h"
#include "kernels/base/status_macros.h"
#include "pagoda_version.h"

namespace pagoda::daemon {
namespace {

// A request of this size is parsed in microseconds.
constexpr size_t kMaxInlineBytes = 4096;

absl::Status CheckLoaded(ServingState state) {
  return state == ServingState::kLoading ? LoadingError() : absl::OkStatus();
}

}  // namespace

EngineService::EngineService(const Options& options)
    : options_(options),
      start_ns_(options.services->clock->NowNs()),
      model_info_(DescribeForGateway(*options.services->model, options.model_dir)),
      bundles_(options.model_dir),
      throughput_(start_ns_) {}

template <typename Request>
absl::StatusOr<Request> EngineService::Parse(const grpc::ByteBuffer& bytes) const {
  Request request;
  PAGODA_RETURN_IF_ERROR(
      ParseRequest(bytes, options_.services->model->max_message_bytes, &request));
  return request;
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* EngineService::Answer(
    AccessClass access,
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response,
    absl::StatusOr<Response> (EngineService::*handle)(const Request&, const Caller&)) {
  absl::StatusOr<Caller> caller = options_.services->access->Check(access, *context);
  if (!caller.ok()) return RefuseCall(*options_.services->access, context, caller.status());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto run =
      [this, caller = *std::move(caller), request, response, handle]() -> absl::Status {
    PAGODA_ASSIGN_OR_RETURN(const Request parsed, Parse<Request>(*request));
    PAGODA_ASSIGN_OR_RETURN(const Response reply, (this->*handle)(parsed, caller));
    *response = SerializeReply(reply);
    return absl::OkStatus();
  };
  absl::Status status = CheckLoaded(state());
  if (status.ok() && request->Length() > kMaxInlineBytes) {
    status = options_.text_pool->Post(request->Length(),
                                      [reactor, run] { reactor->Finish(ToGrpcStatus(run())); });
    if (status.ok()) return reactor;
  } else if (status.ok()) {
    status = run();
  }
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* EngineService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  last_receive_unix_ns_.store(absl::GetCurrentTimeNanos(), std::memory_order_relaxed);
  constexpr AccessClass kAccess = AccessOf(kEngineRoutes, "Generate");
  absl::StatusOr<Caller> caller = options_.services->access->Check(kAccess, *context);
  if (!caller.ok()) return RefuseStream(*options_.services->access, *context, caller.status());
  auto* const call = new EngineGenerateCall(
      *options_.services, context, *std::move(caller), request, Api::kVllmGrpc);
  absl::Status status = CheckReady(state());
  if (status.ok()) status = options_.text_pool->Post(request->Length(), [call] { call->Admit(); });
  if (!status.ok()) call->End(status);
  return call;
}

grpc::ServerUnaryReactor* EngineService::Embed(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* /*request*/,
                                               grpc::ByteBuffer* /*response*/) {
  constexpr AccessClass kAccess = AccessOf(kEngineRoutes, "Embed");
  const absl::Status admitted = options_.services->access->Check(kAccess, *context).status();
  if (!admitted.ok()) return RefuseCall(*options_.services->access, context, admitted);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(
      ToGrpcStatus(absl::UnimplementedError("Embed: the model generates and embeds nothing")));
  return reactor;
}

grpc::ServerUnaryReactor* EngineService::HealthCheck(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* /*request*/,
                                                     grpc::ByteBuffer* response) {
  static_assert(AccessOf(kEngineRoutes, "HealthCheck") == AccessClass::kPublic);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  *response = SerializeReply(DescribeHealth(state()));
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* EngineService::Abort(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return Answer(
      AccessOf(kEngineRoutes, "Abort"), context, request, response, &EngineService::AbortRequests);
}

grpc::ServerUnaryReactor* EngineService::GetModelInfo(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  return Answer(AccessOf(kEngineRoutes, "GetModelInfo"),
                context,
                request,
                response,
                &EngineService::TellModel);
}

grpc::ServerUnaryReactor* EngineService::GetServerInfo(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return Answer(AccessOf(kEngineRoutes, "GetServerInfo"),
                context,
                request,
                response,
                &EngineService::TellServer);
}

grpc::ServerUnaryReactor* EngineService::GetLoads(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) {
  return Answer(
      AccessOf(kEngineRoutes, "GetLoads"), context, request, response, &EngineService::TellLoads);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* EngineService::GetTokenizer(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  constexpr AccessClass kAccess = AccessOf(kEngineRoutes, "GetTokenizer");
  const auto caller = options_.services->access->Check(kAccess, *context);
  if (!caller.ok()) return RefuseStream(*options_.services->access, *context, caller.status());
  auto* const stream = new TokenizerStream;
  absl::Status status = CheckLoaded(state());
  if (status.ok()) {
    status = options_.text_pool->Post(
        request->Length(), [this, stream, request] { stream->Begin(FindBundle(*request)); });
  }
  if (!status.ok()) stream->Begin(status);
  return stream;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* EngineService::SubscribeKvEvents(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  constexpr AccessClass kAccess = AccessOf(kEngineRoutes, "SubscribeKvEvents");
  const auto caller = options_.services->access->Check(kAccess, *context);
  if (!caller.ok()) return RefuseStream(*options_.services->access, *context, caller.status());
  auto* const stream = new KvEventStream(options_.kv_events);
  const auto attach = [this, stream, request] {
    const auto subscription = Parse<smg_pb::SubscribeKvEventsRequest>(*request);
    if (!subscription.ok()) return stream->End(subscription.status());
    options_.kv_events->Attach(stream->id(), stream, subscription->start_sequence_number());
  };
  absl::Status status = CheckReady(state());
  if (status.ok()) status = options_.text_pool->Post(request->Length(), attach);
  if (!status.ok()) stream->End(status);
  return stream;
}

absl::StatusOr<engine_pb::AbortResponse> EngineService::AbortRequests(
    const engine_pb::AbortRequest& request, const Caller& caller) {
  for (const std::string& id : request.request_ids()) {
    const auto key =
        options_.services->request_ids->Abort(LiveRequestIds::NameOf(caller.tenant.name, id));
    if (key.has_value()) options_.services->engine->Cancel(*key);
  }
  return engine_pb::AbortResponse();
}

absl::StatusOr<engine_pb::GetModelInfoResponse> EngineService::TellModel(
    const engine_pb::GetModelInfoRequest& /*request*/, const Caller& /*caller*/) {
  return model_info_;
}

absl::StatusOr<engine_pb::GetServerInfoResponse> EngineService::TellServer(
    const engine_pb::GetServerInfoRequest& /*request*/, const Caller& /*caller*/) {
  const ServedModel& model = *options_.services->model;
  engine_pb::GetServerInfoResponse info;
  info.set_active_requests(static_cast<uint32_t>(options_.services->calls->num_open()));
  info.set_is_paused(state() != ServingState::kReady);
  info.set_last_receive_timestamp(
      static_cast<double>(last_receive_unix_ns_.load(std::memory_order_relaxed)) * 1e-9);
  info.set_uptime_seconds(static_cast<double>(options_.services->clock->NowNs() - start_ns_) *
                          1e-9);
  info.set_server_type("pagoda");
  info.set_data_parallel_size(1);
  info.set_block_size(model.kv_block_tokens);
  info.set_model_dtype(model.dtype);
  info.set_max_num_seqs(model.max_sequences);
  info.set_constrained_decoding_start("first_token");
  return info;
}

absl::StatusOr<engine_pb::GetLoadsResponse> EngineService::TellLoads(
    const engine_pb::GetLoadsRequest& request, const Caller& /*caller*/) {
  FieldChecker checker;
  if (request.has_dp_rank()) checker.CheckInt("dp_rank", request.dp_rank(), 0, 0);
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  engine_pb::GetLoadsResponse response;
  response.set_timestamp(absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()));
  response.set_version(PAGODA_VERSION);
  response.set_dp_rank_count(1);
  engine_pb::SchedulerLoad* const load = response.add_loads();
  options_.engine_metrics.With([&](const engine::EngineMetrics& metrics) {
    *load = DescribeLoad(metrics, *options_.services->model);
    load->set_gen_throughput(
        throughput_.Rate(options_.services->clock->NowNs(), metrics.generation_tokens.value()));
  });
  return response;
}

// ---- Text threads

absl::StatusOr<std::shared_ptr<const TokenizerBundle>> EngineService::FindBundle(
    const grpc::ByteBuffer& request_bytes) {
  PAGODA_RETURN_IF_ERROR(Parse<smg_pb::GetTokenizerRequest>(request_bytes).status());
  if (options_.services->model->tokenizer == nullptr) return NoTokenizerError("GetTokenizer");
  return bundles_.Get();
}

}  // namespace pagoda::daemon
