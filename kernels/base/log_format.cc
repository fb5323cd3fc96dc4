#include "kernels/base/log_format.h"

#include <cstdint>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pagoda {
namespace {

// PIPE_BUF on Linux: a write of at most this many bytes to a pipe is whole or nothing, so lines of
// several processes do not mix.
constexpr size_t kMaxLineBytes = 4096;
constexpr absl::string_view kCut = " ...";
// For what follows the text, and the longest escape.
constexpr size_t kReserve = 16;

absl::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "";
}

// Of syslog(3).
int PriorityOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return 7;
    case LogLevel::kInfo:
      return 6;
    case LogLevel::kWarning:
      return 4;
    case LogLevel::kError:
      return 3;
  }
  return 6;
}

std::string TimeText(int64_t unix_ns) {
  const time_t seconds = unix_ns / 1'000'000'000;
  tm utc;
  gmtime_r(&seconds, &utc);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ",
                         utc.tm_year + 1900,
                         utc.tm_mon + 1,
                         utc.tm_mday,
                         utc.tm_hour,
                         utc.tm_min,
                         utc.tm_sec,
                         static_cast<int>(unix_ns / 1'000'000 % 1000));
}

// Bytes of the UTF-8 character that the text begins with; 0: of none.
size_t CharacterBytes(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t size = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (lead >= 0xF5 || size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return size;
}

void AppendControl(unsigned char byte, bool is_json, std::string* out) {
  if (byte == '\n') {
    out->append("\\n");
  } else if (byte == '\t') {
    out->append("\\t");
  } else if (byte == '\r') {
    out->append("\\r");
  } else if (is_json) {
    absl::StrAppendFormat(out, "\\u%04x", byte);
  } else {
    absl::StrAppendFormat(out, "\\x%02x", byte);
  }
}

void AppendEscaped(absl::string_view text, bool is_json, std::string* out) {
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    size_t num_bytes = CharacterBytes(text);
    if (out->size() + kCut.size() + kReserve > kMaxLineBytes) {
      out->append(kCut.data(), kCut.size());
      return;
    }
    if (byte < 0x20 || byte == 0x7F) {
      AppendControl(byte, is_json, out);
    } else if (is_json && (byte == '"' || byte == '\\')) {
      out->push_back('\\');
      out->push_back(static_cast<char>(byte));
    } else if (num_bytes == 0) {
      num_bytes = 1;
      is_json ? out->append("\\ufffd") : out->append(1, static_cast<char>(byte));
    } else {
      out->append(text.data(), num_bytes);
    }
    text.remove_prefix(num_bytes);
  }
}

}  // namespace

std::string FormatLogLine(LogFormat format,
                          LogLevel level,
                          int64_t unix_ns,
                          absl::string_view text) {
  std::string out;
  switch (format) {
    case LogFormat::kText:
      out = absl::StrCat(TimeText(unix_ns), " pagoda: ");
      if (level != LogLevel::kInfo) absl::StrAppend(&out, LevelName(level), ": ");
      break;
    case LogFormat::kJournal:
      out = absl::StrCat("<", PriorityOf(level), ">");
      break;
    case LogFormat::kJson:
      out = absl::StrCat("{\"time\":\"",
                         TimeText(unix_ns),
                         "\",\"level\":\"",
                         LevelName(level),
                         "\",\"message\":\"");
      break;
  }
  AppendEscaped(text, format == LogFormat::kJson, &out);
  out.append(format == LogFormat::kJson ? "\"}\n" : "\n");
  return out;
}

}  // namespace pagoda
