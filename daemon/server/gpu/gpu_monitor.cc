#include "daemon/server/gpu/gpu_monitor.h"

#include <pthread.h>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "kernels/base/log.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {
namespace {

// After which what was read says nothing any more: a round may be slow.
constexpr int kStaleIntervals = 4;
// For a thread that is about to end.
constexpr absl::Duration kEndPatience = absl::Milliseconds(200);

}  // namespace

struct GpuMonitor::Shared {
  explicit Shared(Options o) : options(std::move(o)) {}

  const Options options;
  Mutex mutex;
  bool must_end ABSL_GUARDED_BY(mutex) = false;
  bool has_ended ABSL_GUARDED_BY(mutex) = false;
  bool has_library ABSL_GUARDED_BY(mutex) = true;  // until it is known not to be there
  // When the last round ended, or the first began.
  int64_t news_at_ns ABSL_GUARDED_BY(mutex) = 0;
  // Empty before the end of the first round.
  std::vector<absl::optional<GpuReading>> readings ABSL_GUARDED_BY(mutex);
};

GpuMonitor::GpuMonitor(Options options) : shared_(std::make_shared<Shared>(std::move(options))) {
  {
    MutexLock lock(&shared_->mutex);
    shared_->news_at_ns = shared_->options.clock->NowNs();
    shared_->has_library = !shared_->options.pci_bus_ids.empty();
    shared_->has_ended = !shared_->has_library;
    if (shared_->has_ended) return;
  }
  std::thread thread([shared = shared_] {
    Run(shared);
    MutexLock lock(&shared->mutex);
    shared->has_ended = true;
  });
  pthread_setname_np(thread.native_handle(), "gpu-monitor");
  thread.detach();
}

GpuMonitor::~GpuMonitor() {
  MutexLock lock(&shared_->mutex);
  shared_->must_end = true;
  shared_->mutex.AwaitWithTimeout(absl::Condition(&shared_->has_ended), kEndPatience);
}

void GpuMonitor::Run(const std::shared_ptr<Shared>& shared) {
  const Options& options = shared->options;
  const absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open(options.library);
  if (!nvml.ok()) {
    LogInfo("no figures of GPUs in the metrics: %s", nvml.status().message());
    MutexLock lock(&shared->mutex);
    shared->has_library = false;
    return;
  }
  std::vector<bool> answers(options.pci_bus_ids.size(), true);
  while (true) {
    std::vector<absl::optional<GpuReading>> readings;
    for (size_t i = 0; i < options.pci_bus_ids.size(); ++i) {
      absl::StatusOr<GpuReading> reading = (*nvml)->Read(options.pci_bus_ids[i]);
      if (answers[i] && !reading.ok())
        LogWarning(
            "GPU %s does not answer: %s", options.pci_bus_ids[i], reading.status().message());
      if (!answers[i] && reading.ok()) LogInfo("GPU %s answers again", options.pci_bus_ids[i]);
      answers[i] = reading.ok();
      readings.push_back(reading.ok() ? absl::make_optional(*std::move(reading)) : absl::nullopt);
    }
    MutexLock lock(&shared->mutex);
    shared->readings = std::move(readings);
    shared->news_at_ns = options.clock->NowNs();
    if (shared->mutex.AwaitWithTimeout(absl::Condition(&shared->must_end), options.interval))
      return;
  }
}

GpuReadings GpuMonitor::Readings() const {
  const Options& options = shared_->options;
  const int64_t limit_ns = kStaleIntervals * absl::ToInt64Nanoseconds(options.interval);
  MutexLock lock(&shared_->mutex);
  if (!shared_->has_library) return absl::nullopt;
  if (options.clock->NowNs() - shared_->news_at_ns > limit_ns)
    return std::vector<absl::optional<GpuReading>>(options.pci_bus_ids.size());
  if (shared_->readings.empty()) return absl::nullopt;
  return shared_->readings;
}

}  // namespace pagoda::daemon
