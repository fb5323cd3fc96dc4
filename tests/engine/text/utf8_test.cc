#include "engine/text/utf8.h"

#include <string>

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

using std::string_literals::operator""s;

constexpr char kReplacement[] = "\xEF\xBF\xBD";

std::string Repeat(const std::string& s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += s;
  return out;
}

struct Case {
  std::string bytes;
  std::string text;
  size_t num_held_back;
};

TEST(Utf8, IllFormedBytesBecomeMaximalSubparts) {
  const std::string r = kReplacement;
  const Case kCases[] = {
      {"", "", 0},
      {"plain ascii text, longer than a word", "plain ascii text, longer than a word", 0},
      {"a\0b"s, "a\0b"s, 0},
      {"\x80", r, 0},
      {"\xC0\x80", r + r, 0},
      {"\xED\xA0\x80", r + r + r, 0},
      {"\xF5\x80\x80\x80", Repeat(r, 4), 0},
      {"\xF4\x90\x80\x80", Repeat(r, 4), 0},
      {"\xE0\x9F\xBF", Repeat(r, 3), 0},
      // The example of the Unicode standard, section 3.9, table 3-11 and following.
      {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
       "a" + r + r + r + "b" + r + "c" + r + r + "d",
       0},
      // Held back: what may still become a character.
      {"x\xF0\x9F\x98", "x", 3},
      {"x\xF0", "x", 1},
      {"\xE2\x82", "", 2},
      {"\xC2", "", 1},
      // Not held back: what never can.
      {"\xE0\x80", r + r, 0},
      {"\xF0\x9F\x98\x8D", "\xF0\x9F\x98\x8D", 0},
  };
  for (const Case& c : kCases) {
    std::string text = "before ";
    EXPECT_EQ(AppendUtf8(c.bytes, &text), c.num_held_back);
    EXPECT_EQ(text, "before " + c.text);
    EXPECT_TRUE(IsValidUtf8(text));
    EXPECT_EQ(IsValidUtf8(c.bytes), c.text == c.bytes);
  }
}

TEST(Utf8, EveryCodePointIsValidAndNothingElseOfItsLength) {
  int num_valid = 0;
  for (int lead = 0; lead < 256; ++lead) {
    for (int second = 0; second < 256; ++second) {
      for (int third : {0x7F, 0x80, 0xBF, 0xC0}) {
        const std::string bytes = {
            static_cast<char>(lead), static_cast<char>(second), static_cast<char>(third)};
        const bool expected =
            (lead < 0x80 && second < 0x80 && third < 0x80) ||
            (lead < 0x80 && second >= 0xC2 && second < 0xE0 && third >= 0x80 && third < 0xC0) ||
            (lead >= 0xC2 && lead < 0xE0 && second >= 0x80 && second < 0xC0 && third < 0x80) ||
            (lead >= 0xE0 && lead < 0xF0 && second >= (lead == 0xE0 ? 0xA0 : 0x80) &&
             second < (lead == 0xED ? 0xA0 : 0xC0) && third >= 0x80 && third < 0xC0);
        ASSERT_EQ(IsValidUtf8(bytes), expected) << lead << " " << second << " " << third;
        num_valid += expected;
      }
    }
  }
  EXPECT_GT(num_valid, 0);
}

}  // namespace
}  // namespace pagoda::engine
