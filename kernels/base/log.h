#pragma once

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace pagoda {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error"; false when the name is none of them.
bool SetLogLevel(absl::string_view name);

// Writes one line to standard error. Control characters are escaped. Prompts and outputs never go here. Thread-safe;
// a closed or blocked standard error drops the line instead of stalling the caller.
void LogLine(LogLevel level, absl::string_view line);

template <typename... Args>
void LogInfo(const absl::FormatSpec<Args...>& format, const Args&... args) {
  LogLine(LogLevel::kInfo, absl::StrFormat(format, args...));
}
template <typename... Args>
void LogWarning(const absl::FormatSpec<Args...>& format, const Args&... args) {
  LogLine(LogLevel::kWarning, absl::StrFormat(format, args...));
}
template <typename... Args>
void LogError(const absl::FormatSpec<Args...>& format, const Args&... args) {
  LogLine(LogLevel::kError, absl::StrFormat(format, args...));
}

}  // namespace pagoda
