#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "kernels/base/log.h"

namespace pagoda {

// How lines look. In each a control character of the text is escaped, and what is too long for one
// write is cut.
enum class LogFormat {
  kText,     // time, program, level, text
  kJournal,  // priority as sd-daemon(3) has it, text: for a reader that notes the time itself
  kJson      // {"time":...,"level":...,"message":...}
};

// "text" or "json", for this process; false when the name is neither. Text becomes kJournal where
// $JOURNAL_STREAM says that standard error leads to the journal.
bool SetLogFormat(absl::string_view name);

// A line with its end, as it is written at `unix_ns`. What LogLine does, for tests.
std::string FormatLogLine(LogFormat format,
                          LogLevel level,
                          int64_t unix_ns,
                          absl::string_view text);

}  // namespace pagoda
