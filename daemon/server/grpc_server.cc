#include "daemon/server/grpc_server.h"

#include <utility>

#include <grpc/grpc.h>

#include "absl/strings/str_cat.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "kernels/base/status_macros.h"
#include "pagoda/v1/inference.grpc.pb.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace pagoda::daemon {
namespace {

// Finds clients that are gone without a word and would hold KV blocks.
constexpr int kKeepaliveTimeMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
// Clients ping every 10 s while a long prefill is silent, which may arrive a little closer
// together; gRPC's own limit of five minutes would cut them off, as would one of just 10 s.
constexpr int kMinPingIntervalMs = 8'000;
// Per connection; also what rapid resets run into.
constexpr int kMaxConcurrentStreams = 4096;
// gRPC's 8 KiB is short for trace and authentication headers.
constexpr int kMaxMetadataBytes = 32 * 1024;

void SetLimits(const GrpcServer::Options& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(options.max_message_bytes);
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxConcurrentStreams);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // Ours has a limit, and knows gzip.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  // Otherwise two daemons share a port and each gets half of the connections.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->SetResourceQuota(grpc::ResourceQuota("pagoda").Resize(options.max_inbound_bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    Options options, const std::vector<grpc::Service*>& services) {
  PAGODA_RETURN_IF_ERROR(PrepareAddress(options.address));
  // Both are process-wide switches that builders read; there is one server.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  int port = 0;
  builder.AddListeningPort(options.address.ToString(), MakeServerCredentials(options.tls), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return ExplainBindFailure(options.address);
  if (!options.address.is_unix()) options.address.port = static_cast<uint16_t>(port);
  std::unique_ptr<GrpcServer> result(new GrpcServer(std::move(options), std::move(server)));
  result->SetHealth(/*lives=*/false, /*is_ready=*/false);
  return result;
}

GrpcServer::~GrpcServer() { Shutdown(absl::Now()); }

void GrpcServer::SetHealth(bool lives, bool is_ready) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  health->SetServingStatus("", lives);
  health->SetServingStatus(v1::InferenceService::service_full_name(), is_ready);
  health->SetServingStatus(vllm::grpc::engine::VllmEngine::service_full_name(), is_ready);
}

void GrpcServer::Shutdown(absl::Time deadline) {
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
}

}  // namespace pagoda::daemon
