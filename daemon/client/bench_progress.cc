#include "daemon/client/bench_progress.h"

#include <iostream>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace pagoda::daemon {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(500);

}  // namespace

ProgressLine::ProgressLine(const BenchProgress* progress, int64_t num_requests, bool is_shown) {
  if (!is_shown) return;
  thread_ = std::thread([this, progress, num_requests] {
    int64_t tokens_before = 0;
    while (!is_over_.WaitForNotificationWithTimeout(kInterval)) {
      const int64_t ended = progress->num_ended.load(), started = progress->num_started.load();
      const int64_t tokens = progress->num_output_tokens.load();
      // The end of the line before may be longer.
      std::cerr << absl::StrFormat("\r%d of %d done, %d in flight, %.0f tokens/s\x1b[K",
                                   ended,
                                   num_requests,
                                   started - ended,
                                   static_cast<double>(tokens - tokens_before) /
                                       absl::ToDoubleSeconds(kInterval))
                << std::flush;
      tokens_before = tokens;
    }
    std::cerr << "\r\x1b[K" << std::flush;
  });
}

ProgressLine::~ProgressLine() {
  if (!thread_.joinable()) return;
  is_over_.Notify();
  thread_.join();
}

}  // namespace pagoda::daemon
