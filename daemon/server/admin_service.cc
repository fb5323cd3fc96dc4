#include "daemon/server/admin_service.h"

#include <chrono>
#include <sys/stat.h>
#include <utility>

#include <grpc/grpc.h>

#include "absl/strings/str_cat.h"
#include "daemon/server/listen_address.h"
#include "daemon/server/rpc_error.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

constexpr mode_t kNobodyElse = 0177;  // leaves rw for the owner

grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

absl::Status NoEngineError() {
  return absl::FailedPreconditionError("the model is not loaded, or no longer");
}

// Null: not one of the levels.
const char* LogLevelName(v1::LogLevel level) {
  switch (level) {
    case v1::LOG_LEVEL_DEBUG:
      return "debug";
    case v1::LOG_LEVEL_INFO:
      return "info";
    case v1::LOG_LEVEL_WARNING:
      return "warning";
    case v1::LOG_LEVEL_ERROR:
      return "error";
    default:
      return nullptr;
  }
}

void Describe(const engine::EngineState& state, v1::DumpStateResponse* out) {
  out->set_steps_in_flight(state.num_steps_in_flight);
  v1::KvPoolState* const pool = out->mutable_kv_pool();
  pool->set_total_blocks(state.num_blocks);
  pool->set_used_blocks(state.num_used_blocks);
  pool->set_cached_blocks(state.num_cached_blocks);
  pool->set_free_blocks(state.num_free_blocks);
  for (const engine::EngineState::Tenant& in : state.tenants) {
    v1::TenantState* const tenant = out->add_tenants();
    tenant->set_name(in.name);
    tenant->set_weight(in.weight);
    tenant->set_virtual_tokens(in.virtual_tokens);
    tenant->set_waiting_sequences(in.num_waiting);
    tenant->set_running_sequences(static_cast<uint64_t>(in.num_running));
  }
  for (const engine::EngineState::Sequence& in : state.sequences) {
    v1::SequenceState* const sequence = out->add_sequences();
    sequence->set_request_key(in.key.value());
    sequence->set_index(static_cast<uint32_t>(in.index));
    sequence->set_tenant(in.tenant);
    if (in.slot.has_value()) sequence->set_slot(*in.slot);
    sequence->set_prompt_tokens(static_cast<uint32_t>(in.num_prompt_tokens));
    sequence->set_known_tokens(static_cast<uint32_t>(in.num_known_tokens));
    sequence->set_computed_tokens(static_cast<uint32_t>(in.num_computed));
    sequence->set_kv_blocks(static_cast<uint32_t>(in.num_blocks));
    sequence->set_rows_in_flight(static_cast<uint32_t>(in.num_rows_in_flight));
    sequence->set_preemptions(static_cast<uint32_t>(in.num_preemptions));
    sequence->set_priority(in.priority);
    sequence->set_age_seconds(static_cast<double>(in.age_ns) * 1e-9);
  }
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* /*request*/,
                                              v1::DrainResponse* /*response*/) {
  LogInfo("admin: drain");
  grpc::ServerUnaryReactor* const reactor = Reply(context, absl::OkStatus());
  actions_.drain();
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const v1::SetLogLevelRequest* request,
                                                    v1::SetLogLevelResponse* /*response*/) {
  const char* const name = LogLevelName(request->level());
  if (name == nullptr)
    return Reply(context,
                 InvalidFieldsError({{"level", "expected one of debug, info, warning and error"}}));
  LogInfo("admin: log level is %s", name);
  pagoda::SetLogLevel(name);
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::GetConfig(grpc::CallbackServerContext* context,
                                                  const v1::GetConfigRequest* /*request*/,
                                                  v1::GetConfigResponse* response) {
  response->set_yaml(actions_.config());
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::FlushPrefixCache(
    grpc::CallbackServerContext* context,
    const v1::FlushPrefixCacheRequest* /*request*/,
    v1::FlushPrefixCacheResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const bool is_asked = actions_.flush_prefix_cache([reactor, response](uint64_t num_blocks) {
    LogInfo("admin: %d blocks flushed from the prefix cache", num_blocks);
    response->set_flushed_blocks(num_blocks);
    reactor->Finish(grpc::Status::OK);
  });
  if (!is_asked) reactor->Finish(ToGrpcStatus(NoEngineError()));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::DumpState(grpc::CallbackServerContext* context,
                                                  const v1::DumpStateRequest* request,
                                                  v1::DumpStateResponse* response) {
  const size_t num_replicas = actions_.num_replicas();
  if (num_replicas > 0 && request->replica() >= num_replicas) {
    return Reply(
        context,
        InvalidFieldsError({{"replica", absl::StrCat("expected less than ", num_replicas)}}));
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const bool is_asked =
      num_replicas > 0 &&
      actions_.dump_state(request->replica(), [reactor, response](engine::EngineState state) {
        Describe(state, response);
        reactor->Finish(grpc::Status::OK);
      });
  if (!is_asked) reactor->Finish(ToGrpcStatus(NoEngineError()));
  return reactor;
}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const std::string& path,
                                                                AdminService::Actions actions) {
  PAGODA_ASSIGN_OR_RETURN(const ListenAddress address,
                          ParseListenAddress("--admin-socket", "unix:" + path));
  PAGODA_RETURN_IF_ERROR(PrepareAddress(address));
  std::unique_ptr<AdminServer> admin(new AdminServer(std::move(actions)));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials());
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(&admin->service_);
  // From the moment it exists: changing the mode afterwards would leave a gap. No other thread
  // makes files while the daemon starts.
  const mode_t before = umask(kNobodyElse);
  admin->server_ = builder.BuildAndStart();
  umask(before);
  if (admin->server_ == nullptr) return ExplainBindFailure(address);
  return admin;
}

AdminServer::~AdminServer() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

}  // namespace pagoda::daemon
