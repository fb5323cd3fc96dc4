#include "daemon/server/operations.h"

#include <memory>
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
      .flush_prefix_cache = [this](auto done) { return FlushPrefixCaches(std::move(done)); },
      .num_replicas = [this] { return has_engines_.load() ? engines_.size() : 0; },
      .dump_state =
          [this](size_t replica, auto done) {
            return has_engines_.load() && engines_.at(replica)->DumpState(std::move(done));
          }};
  PAGODA_ASSIGN_OR_RETURN(admin_server_, AdminServer::Start(socket_path, std::move(actions)));
  LogInfo("admin service on unix:%s", socket_path);
  return absl::OkStatus();
}

void Operations::SetEngines(std::vector<engine::Engine*> engines) {
  engines_ = std::move(engines);
  has_engines_.store(true);
}

bool Operations::FlushPrefixCaches(std::function<void(uint64_t num_blocks)> done) const {
  if (!has_engines_.load()) return false;
  // The engine thread that is last, or this one where the rest have ended, tells the sum.
  struct Sum {
    std::function<void(uint64_t)> done;
    std::atomic<uint64_t> num_blocks{0};
    std::atomic<size_t> num_open{0};
  };
  const auto sum = std::make_shared<Sum>();
  sum->done = std::move(done);
  sum->num_open = engines_.size() + 1;
  const auto close_one = [sum] {
    if (sum->num_open.fetch_sub(1) == 1) sum->done(sum->num_blocks.load());
  };
  size_t num_asked = 0;
  for (engine::Engine* const engine : engines_) {
    const bool is_asked = engine->FlushPrefixCache([sum, close_one](uint64_t num_blocks) {
      sum->num_blocks.fetch_add(num_blocks);
      close_one();
    });
    is_asked ? static_cast<void>(++num_asked) : close_one();
  }
  if (num_asked == 0) return false;
  close_one();
  return true;
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
