#include "daemon/config/setting_value.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::StartsWith;

TEST(SettingValueTest, Counts) {
  EXPECT_EQ(*ParseCount("0"), 0u);
  EXPECT_EQ(*ParseCount("256"), 256u);
  EXPECT_EQ(*ParseCount(" 8 "), 8u);
  EXPECT_EQ(*ParseCount("32k"), 32'000u);
  EXPECT_EQ(*ParseCount("32K"), 32'768u);
  EXPECT_EQ(*ParseCount("1.5k"), 1'500u);
  EXPECT_EQ(*ParseCount("2m"), 2'000'000u);
  EXPECT_EQ(*ParseCount("9007199254740992"), 9007199254740992u);
  for (const char* bad : {"",
                          "k",
                          "-1",
                          "1.5",
                          "0.3k5",
                          "1e3",
                          "12x",
                          "1 2",
                          "nan",
                          "inf",
                          "0x10",
                          "99999999999999999999",
                          "1.0001k"}) {
    const auto count = ParseCount(bad);
    EXPECT_FALSE(count.ok()) << bad;
    EXPECT_THAT(std::string(count.status().message()), StartsWith("expected a whole number"));
  }
}

TEST(SettingValueTest, Bytes) {
  EXPECT_EQ(*ParseBytes("1048576"), 1048576u);
  EXPECT_EQ(*ParseBytes("2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("2 GiB"), uint64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("2G"), uint64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("512MB"), 512'000'000u);
  EXPECT_EQ(*ParseBytes("1.5KiB"), 1536u);
  for (const char* bad : {"", "GiB", "2gib", "-1", "2 G B", "1.3"})
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
}

TEST(SettingValueTest, Durations) {
  EXPECT_EQ(*ParseMilliseconds("30"), 30'000u);
  EXPECT_EQ(*ParseMilliseconds("30s"), 30'000u);
  EXPECT_EQ(*ParseMilliseconds("0.5"), 500u);
  EXPECT_EQ(*ParseMilliseconds("250ms"), 250u);
  EXPECT_EQ(*ParseMilliseconds("2m"), 120'000u);
  EXPECT_EQ(*ParseMilliseconds("1h"), 3'600'000u);
  for (const char* bad : {"", "s", "1us", "0.0001s", "-3s"})
    EXPECT_FALSE(ParseMilliseconds(bad).ok()) << bad;
}

TEST(SettingValueTest, RealsAndSwitches) {
  EXPECT_EQ(*ParseReal("0.9"), 0.9);
  for (const char* bad : {"", "x", "inf", "nan", "1,5"}) EXPECT_FALSE(ParseReal(bad).ok()) << bad;
  for (const char* yes : {"true", "Yes", "on", "1"}) EXPECT_TRUE(*ParseSwitch(yes)) << yes;
  for (const char* no : {"false", "NO", "off", "0"}) EXPECT_FALSE(*ParseSwitch(no)) << no;
  EXPECT_FALSE(ParseSwitch("maybe").ok());
}

TEST(SettingValueTest, WhatIsPrintedIsReadBack) {
  for (const uint64_t bytes : {uint64_t{0},
                               uint64_t{1},
                               uint64_t{1000},
                               uint64_t{1024},
                               uint64_t{3} << 20,
                               (uint64_t{1} << 40) + 1,
                               uint64_t{5} << 40}) {
    EXPECT_EQ(*ParseBytes(FormatByteCount(bytes)), bytes);
  }
  for (const uint64_t ms :
       {uint64_t{0}, uint64_t{1}, uint64_t{999}, uint64_t{1000}, uint64_t{90'500}}) {
    EXPECT_EQ(*ParseMilliseconds(FormatMilliseconds(ms)), ms);
  }
  for (const double value : {0.9, 1.0 / 3.0, 5000.0, 1e-9})
    EXPECT_EQ(*ParseReal(FormatReal(value)), value);
}

}  // namespace
}  // namespace pagoda::daemon
