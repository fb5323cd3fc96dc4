#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/server/access.h"
#include "daemon/server/admin_service.h"
#include "daemon/server/listen_address.h"
#include "daemon/server/service_manager.h"
#include "daemon/server/tls_files.h"
#include "engine/engine.h"
#include "pagoda/internal/v1/config.pb.h"

namespace pagoda::daemon {

// Where a configuration comes from.
struct ServeSources {
  // Nobody asked for the HTTP address, so where it is taken a warning says so and all else is
  // served.
  bool http_is_optional = false;
  // The configuration as a file, without secrets.
  std::string config_text;
  // Reads everything again, as a new start would.
  std::function<absl::StatusOr<internal::v1::ServerConfig>()> read_again;
};

// Warns of an address that other machines reach, by what it lacks for that.
void WarnOfReach(const ListenAddress& address, const TlsFiles& tls, const AccessControl& access);

// What an operator does to a running daemon: reloads and the admin service. Thread-safe but for
// Listen and Stop.
class Operations {
 public:
  struct Options {
    const ServeSources* sources = nullptr;
    AccessControl* access = nullptr;
    ServiceManager* manager = nullptr;
    const std::unique_ptr<TlsContext>* tls = nullptr;  // null within: HTTP is not encrypted
    std::function<void()> ask_to_stop;
  };

  explicit Operations(Options options) : options_(std::move(options)) {}

  // Serves the admin service there; nowhere if the path is empty.
  absl::Status Listen(const std::string& socket_path);
  // What the admin service asks from now on, by replica; they outlive Stop. Once.
  void SetEngines(std::vector<engine::Engine*> engines);
  void Stop() { admin_server_.reset(); }

  // Takes certificates, the keys and the log level of the configuration as it is now; all stays as
  // it was when it is wrong. `is_ready`: the service manager takes the daemon to be.
  void Reload(bool is_ready);

 private:
  absl::Status Take(const internal::v1::ServerConfig& config);
  bool FlushPrefixCaches(std::function<void(uint64_t num_blocks)> done) const;

  const Options options_;
  // Empty until has_engines_ is set, and constant from then on.
  std::vector<engine::Engine*> engines_;
  std::atomic<bool> has_engines_{false};
  std::unique_ptr<AdminServer> admin_server_;
};

}  // namespace pagoda::daemon
