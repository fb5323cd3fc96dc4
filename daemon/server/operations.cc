#include "daemon/server/operations.h"

#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {

using internal::v1::ServerConfig;

void WarnOfReach(const ListenAddress& address, const TlsFiles& tls, const AccessControl& access) {
  std::vector<absl::string_view> lacks;
  if (tls.empty()) lacks.push_back("encryption");
  if (!access.asks_for_keys() && tls.client_ca.empty()) lacks.push_back("authentication");
  if (address.IsLoopback() || lacks.empty()) return;
  LogWarning("%s is reachable from other machines, without %s",
             address.ToString(),
             absl::StrJoin(lacks, " or "));
}

absl::Status Operations::Listen(const std::string& socket_path) {
  if (socket_path.empty()) return absl::OkStatus();
  AdminService::Actions actions = {
      .drain = options_.ask_to_stop,
      .config = [this] { return options_.sources->config_text; },
      .flush_prefix_cache =
          [this](auto done) {
            engine::Engine* const engine = engine_.load();
            return engine != nullptr && engine->FlushPrefixCache(std::move(done));
          },
      .dump_state =
          [this](auto done) {
            engine::Engine* const engine = engine_.load();
            return engine != nullptr && engine->DumpState(std::move(done));
          }};
  PAGODA_ASSIGN_OR_RETURN(admin_server_, AdminServer::Start(socket_path, std::move(actions)));
  LogInfo("admin service on unix:%s", socket_path);
  return absl::OkStatus();
}

absl::Status Operations::Take(const ServerConfig& config) {
  const std::string& text = config.front_end().api_keys();
  if (text.empty() && options_.access->asks_for_keys()) {
    return absl::FailedPreconditionError(
        "there is no api-key-file any more; to let everybody in, start the daemon again");
  }
  ApiKeys keys;
  if (!text.empty()) {
    PAGODA_ASSIGN_OR_RETURN(keys, ApiKeys::Parse(text));
  }
  // From here on nothing fails once anything is taken.
  TlsContext* const tls = options_.tls->get();
  if (tls != nullptr) PAGODA_RETURN_IF_ERROR(tls->Reload());
  options_.access->SetKeys(std::move(keys));
  SetLogLevel(config.log_level());
  return absl::OkStatus();
}

void Operations::Reload(bool is_ready) {
  if (is_ready) options_.manager->NoteReloading();
  const absl::StatusOr<ServerConfig> config = options_.sources->read_again();
  const absl::Status status = config.ok() ? Take(*config) : config.status();
  if (status.ok()) {
    LogInfo("reloaded API keys, certificates and log level");
  } else {
    LogError("not reloaded, all stays as it was: %s", status.message());
  }
  if (is_ready) options_.manager->NoteReloaded();
}

}  // namespace pagoda::daemon
