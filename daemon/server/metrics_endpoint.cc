#include "daemon/server/metrics_endpoint.h"

#include <atomic>
#include <exception>
#include <netdb.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "prometheus/exposer.h"

namespace pagoda::daemon {
namespace {

// One scrape at a time, and one that finds the first client asleep.
constexpr size_t kNumThreads = 2;

constexpr absl::Duration kKnockInterval = absl::Milliseconds(10);

// civetweb looks whether it should stop only when somebody connects, or every two seconds.
void Knock(const ListenAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found) == 0) {
    const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
      [[maybe_unused]] const int refused = connect(fd, found->ai_addr, found->ai_addrlen);
      close(fd);
    }
    freeaddrinfo(found);
  }
  absl::SleepFor(kKnockInterval);
}

}  // namespace

MetricsEndpoint::MetricsEndpoint(ListenAddress address,
                                 std::unique_ptr<prometheus::Exposer> exposer)
    : address_(std::move(address)), exposer_(std::move(exposer)) {}

MetricsEndpoint::~MetricsEndpoint() {
  std::atomic<bool> stopped{false};
  std::thread knocker([this, &stopped] {
    while (!stopped.load()) Knock(address_);
  });
  exposer_.reset();
  stopped.store(true);
  knocker.join();
}

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    ListenAddress address, std::shared_ptr<MetricsCollector> collector) {
  if (address.is_unix()) {
    return absl::InvalidArgumentError(absl::StrCat(
        address.flag, "=", address.ToString(), ": expected HOST:PORT; scrapers speak TCP"));
  }
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
