#include "daemon/server/metrics_endpoint.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "prometheus/exposer.h"

namespace pagoda::daemon {
namespace {

// One scrape at a time, and one that finds the first client asleep.
constexpr size_t kNumThreads = 2;

}  // namespace

MetricsEndpoint::MetricsEndpoint(ListenAddress address,
                                 std::unique_ptr<prometheus::Exposer> exposer)
    : address_(std::move(address)), exposer_(std::move(exposer)) {}

MetricsEndpoint::~MetricsEndpoint() = default;

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    ListenAddress address, std::shared_ptr<MetricsCollector> collector) {
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    exposer = std::make_unique<prometheus::Exposer>(address.ToString(), kNumThreads);
    exposer->RegisterCollectable(collector);
    const std::vector<int> ports = exposer->GetListeningPorts();
    if (!ports.empty()) address.port = static_cast<uint16_t>(ports.front());
  } catch (const std::exception&) {
    return ExplainBindFailure(address);
  }
  return std::unique_ptr<MetricsEndpoint>(
      new MetricsEndpoint(std::move(address), std::move(exposer)));
}

}  // namespace pagoda::daemon
