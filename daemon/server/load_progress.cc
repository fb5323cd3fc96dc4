#include "daemon/server/load_progress.h"

#include <cstdio>

#include "absl/strings/str_format.h"
#include "daemon/server/memory_plan.h"
#include "kernels/base/log.h"

namespace pagoda::daemon {
namespace {

constexpr int64_t kTerminalIntervalNs = 100'000'000;
// A log is read later: a line that tells nothing new is noise.
constexpr int64_t kLogIntervalNs = 5'000'000'000;

}  // namespace

LoadProgressPrinter::LoadProgressPrinter(bool is_terminal, const Clock* clock)
    : is_terminal_(is_terminal), clock_(clock), start_ns_(clock->NowNs()) {
  next_ns_ = start_ns_ + (is_terminal ? kTerminalIntervalNs : kLogIntervalNs);
}

absl::optional<std::string> LoadProgressPrinter::Show(const internal::v1::LoadProgress& progress) {
  const int64_t now_ns = clock_->NowNs();
  if (now_ns < next_ns_) return absl::nullopt;
  next_ns_ = now_ns + (is_terminal_ ? kTerminalIntervalNs : kLogIntervalNs);
  const double seconds = static_cast<double>(now_ns - start_ns_) * 1e-9;
  std::string line = absl::StrFormat("loading: %s %s of %s, %.2f GB/s",
                                     progress.phase(),
                                     FormatBytes(progress.bytes_done()),
                                     FormatBytes(progress.bytes_total()),
                                     static_cast<double>(progress.bytes_done()) * 1e-9 / seconds);
  if (is_terminal_) {
    line_is_open_ = true;
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  } else {
    LogInfo("%s", line);
  }
  return line;
}

LoadProgressPrinter::~LoadProgressPrinter() {
  if (line_is_open_) std::fputs("\r\x1b[K", stderr);
}

}  // namespace pagoda::daemon
