#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine_state.h"
#include "grpcpp/server.h"
#include "pagoda/v1/admin.grpc.pb.h"

namespace pagoda::daemon {

// pagoda.v1.AdminService: hands over to the daemon. gRPC's threads.
class AdminService final : public v1::AdminService::CallbackService {
 public:
  // What can be asked of the daemon, at any time from any thread. The two that the engine answers
  // say false while there is none.
  struct Actions {
    std::function<void()> drain;
    std::function<std::string()> config;
    std::function<bool(std::function<void(uint64_t num_blocks)>)> flush_prefix_cache;
    std::function<size_t()> num_replicas;  // 0: there is no engine
    // REQUIRES: `replica` is one of those.
    std::function<bool(size_t replica, std::function<void(engine::EngineState)>)> dump_state;
  };

  explicit AdminService(Actions actions) : actions_(std::move(actions)) {}

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::SetLogLevelRequest* request,
                                        v1::SetLogLevelResponse* response) override;
  grpc::ServerUnaryReactor* GetConfig(grpc::CallbackServerContext* context,
                                      const v1::GetConfigRequest* request,
                                      v1::GetConfigResponse* response) override;
  grpc::ServerUnaryReactor* FlushPrefixCache(grpc::CallbackServerContext* context,
                                             const v1::FlushPrefixCacheRequest* request,
                                             v1::FlushPrefixCacheResponse* response) override;
  grpc::ServerUnaryReactor* DumpState(grpc::CallbackServerContext* context,
                                      const v1::DumpStateRequest* request,
                                      v1::DumpStateResponse* response) override;

 private:
  const Actions actions_;
};

// The admin service on a Unix socket of mode 0600, which is all its access control: who may open it
// may do everything. Thread-safe.
class AdminServer {
 public:
  // ALREADY_EXISTS or UNAVAILABLE, in one line with what to do, when the socket cannot be made.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const std::string& path,
                                                            AdminService::Actions actions);
  // Cancels what runs.
  ~AdminServer();

 private:
  explicit AdminServer(AdminService::Actions actions) : service_(std::move(actions)) {}

  AdminService service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace pagoda::daemon
