#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/server/listen_address.h"
#include "daemon/server/metrics_collector.h"

namespace prometheus {
class Exposer;
}

namespace pagoda::daemon {

// GET /metrics on an address of its own, so that it answers while the model loads.
class MetricsEndpoint {
 public:
  // UNAVAILABLE, in one line with what to do, when it cannot be bound; INVALID_ARGUMENT for a Unix
  // socket.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      ListenAddress address, std::shared_ptr<MetricsCollector> collector);
  ~MetricsEndpoint();

  // With the port that was bound.
  const ListenAddress& address() const { return address_; }

 private:
  MetricsEndpoint(ListenAddress address, std::unique_ptr<prometheus::Exposer> exposer);

  ListenAddress address_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace pagoda::daemon
