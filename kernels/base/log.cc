#include "kernels/base/log.h"

#include <atomic>
#include <cstdio>
#include <string>

namespace pagoda {
namespace {

std::atomic<LogLevel> g_min_level{LogLevel::kInfo};

}  // namespace

bool SetLogLevel(absl::string_view name) {
  if (name == "debug") g_min_level = LogLevel::kDebug;
  else if (name == "info") g_min_level = LogLevel::kInfo;
  else if (name == "warning") g_min_level = LogLevel::kWarning;
  else if (name == "error") g_min_level = LogLevel::kError;
  else return false;
  return true;
}

void LogLine(LogLevel level, absl::string_view line) {
  if (level < g_min_level.load(std::memory_order_relaxed)) return;
  std::fprintf(stderr, "pagoda: %s\n", std::string(line).c_str());
}

}  // namespace pagoda
