#include "kernels/base/log_format.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda {
namespace {

using ::testing::EndsWith;

constexpr int64_t kTime = 1'764'508'739'005'000'000;  // 2025-11-30T13:18:59.005Z

TEST(LogFormatTest, Text) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, LogLevel::kInfo, kTime, "a \"b\"\n"),
            "2025-11-30T13:18:59.005Z pagoda: a \"b\"\\n\n");
  EXPECT_EQ(FormatLogLine(LogFormat::kText, LogLevel::kWarning, kTime, "x"),
            "2025-11-30T13:18:59.005Z pagoda: warning: x\n");
}

// The priorities of sd-daemon(3).
TEST(LogFormatTest, Journal) {
  EXPECT_EQ(FormatLogLine(LogFormat::kJournal, LogLevel::kDebug, kTime, "x"), "<7>x\n");
  EXPECT_EQ(FormatLogLine(LogFormat::kJournal, LogLevel::kInfo, kTime, "x"), "<6>x\n");
  EXPECT_EQ(FormatLogLine(LogFormat::kJournal, LogLevel::kWarning, kTime, "x"), "<4>x\n");
  EXPECT_EQ(FormatLogLine(LogFormat::kJournal, LogLevel::kError, kTime, "x"), "<3>x\n");
}

TEST(LogFormatTest, JsonIsWellFormedWhateverTheTextHolds) {
  EXPECT_EQ(FormatLogLine(LogFormat::kJson, LogLevel::kError, kTime, "a\"b\\c\n\t\x01\x7f"),
            "{\"time\":\"2025-11-30T13:18:59.005Z\",\"level\":\"error\",\"message\":\""
            "a\\\"b\\\\c\\n\\t\\u0001\\u007f\"}\n");
  EXPECT_THAT(FormatLogLine(LogFormat::kJson, LogLevel::kInfo, kTime, "caf\xC3\xA9 \xFF\xC3"),
              EndsWith("\"caf\xC3\xA9 \\ufffd\\ufffd\"}\n"));
}

TEST(LogFormatTest, LongLinesAreCutAndWhole) {
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJournal, LogFormat::kJson}) {
    for (const char* unit : {"a", "\x01", "\"", "\xC3\xA9", "\xF0\x9F\x98\x80"}) {
      std::string text;
      while (text.size() < 9000) text += unit;
      const std::string line = FormatLogLine(format, LogLevel::kInfo, kTime, text);
      EXPECT_LE(line.size(), 4096u);
      EXPECT_GT(line.size(), 4000u);
      EXPECT_THAT(line, EndsWith(format == LogFormat::kJson ? " ...\"}\n" : " ...\n"));
    }
  }
}

}  // namespace
}  // namespace pagoda
