#include "engine/text/regex_dialect.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/text/regex.h"

namespace pagoda::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Matches(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  if (!regex.ok()) return {regex.status().ToString()};
  RegexScratch scratch;
  std::vector<std::string> matches;
  const absl::Status status = regex->ForEachMatch(text, scratch, [&](size_t begin, size_t end) {
    matches.push_back(text.substr(begin, end - begin));
  });
  if (!status.ok()) return {status.ToString()};
  return matches;
}

TEST(RegexDialect, PublishedPatternsCompile) {
  const char* kPatterns[] = {
      // Llama 3.
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      // gpt-oss.
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      // DeepSeek V3.
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"([一-龥぀-ゟ゠-ヿ]+)",
      // Bloom.
      R"( ?[^(\s|[.,!?…。，、।۔،])]+)",
      // Possessive quantifiers other than intervals mean the same in both.
      R"([^\r\n\p{L}\p{N}]?+\p{L}++|\p{Han}+)",
  };
  for (const char* pattern : kPatterns)
    EXPECT_TRUE(Regex::Compile(pattern).ok()) << Regex::Compile(pattern).status();
}

TEST(RegexDialect, ClassesAreOniguruma) {
  // U+180E is no white space; U+0085 and U+3000 are.
  EXPECT_THAT(Matches(R"(\s+)", "a\u0085\u3000b\u180Ec"), ElementsAre("\u0085\u3000"));
  EXPECT_THAT(Matches(R"([\s,]+)", "a, b\u180E"), ElementsAre(", "));
  EXPECT_THAT(Matches(R"([^\s]+)", "a\u180E b"), ElementsAre("a\u180E", "b"));
  // A word has marks and connectors too.
  EXPECT_THAT(Matches(R"(\w+)", "x\u0301\u203Fy z"), ElementsAre("x\u0301\u203Fy", "z"));
  EXPECT_THAT(Matches(R"(\W+)", "a-+b"), ElementsAre("-+"));
  // The script, not its extensions: U+3001 is used with Han but is Common.
  EXPECT_THAT(Matches(R"(\p{Han}+)", "漢\u3001字"), ElementsAre("漢", "字"));
  EXPECT_THAT(Matches(R"(\p{^L}+)", "a1-b"), ElementsAre("1-"));
  EXPECT_THAT(Matches(R"(\P{^L}+)", "a1-b"), ElementsAre("a", "b"));
}

TEST(RegexDialect, AClassInAClassIsPartOfIt) {
  // Bloom's: nothing of what the inner class has, no blank, no bracket and no bar.
  EXPECT_THAT(Matches(R"( ?[^(\s|[.,!?…。，、।۔،])]+)", "ab (c|d) e.f,g। h)i"),
              ElementsAre("ab", "c", "d", " e", "f", "g", " h", "i"));
  EXPECT_THAT(Matches(R"([a[b-d[x]]\]]+)", "zabcdx]e["), ElementsAre("abcdx]"));
}

TEST(RegexDialect, LinesAndDotsAreRubys) {
  EXPECT_THAT(Matches("^b$", "a\nb\nc"), ElementsAre("b"));
  EXPECT_THAT(Matches("a.", "a\na\r"), ElementsAre("a\r"));
}

TEST(RegexDialect, AVerticalTabIsOneCharacter) {
  EXPECT_THAT(Matches(R"(\v|[\vx])", "a\n\u2028\v\f\rx"), ElementsAre("\v", "x"));
}

TEST(RegexDialect, CaseIsFolded) {
  EXPECT_THAT(Matches("(?i:'ll|é)", "'LL'lLÉ"), ElementsAre("'LL", "'lL", "É"));
}

TEST(RegexDialect, WhatDiffersIsRefusedWithItsPlace) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"(a\h)", "\\h at byte 1"},
      {R"(\R)", "\\R at byte 0"},
      {R"(\bx)", "\\b"},
      {R"((a)\1)", "\\1 at byte 3"},
      {R"([a&&b])", "&& in a class"},
      {R"([a[^bc]])", "[^ in a class at byte 2"},
      {R"([[:alpha:]])", "[: in a class"},
      {R"([a[]b]])", "[] in a class"},
      {R"([a[-b]])", "[- in a class"},
      {R"([a-[bc]])", "a class in a range"},
      {R"([[ab]-c])", "a class in a range"},
      {R"([[a-]b])", "a class in a range"},
      {R"([a[b&&c]])", "&& in a class"},
      {R"([]a])", "] first in a class"},
      {R"(a{2}+)", "{n,m}+ at byte 1"},
      {R"(a{,3})", "{,n}"},
      {R"(a{)", "{ that opens"},
      {R"((?m:a.))", "(?m"},
      {R"((?<n>a))", "(?<"},
      {R"([\W])", "\\W in a class"},
      {"a\\", "a backslash at the end"},
      {R"(\pL)", "\\p"},
      {R"(\u0041)", "\\u"},
      {"a(*ACCEPT)b", "(* at byte 1"},
      {"(*NO_JIT)a", "(* at byte 0"},
  };
  for (const auto& [pattern, message] : kCases) {
    const auto translated = TranslatePattern(pattern);
    EXPECT_EQ(translated.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(translated.status().message()), HasSubstr(message)) << pattern;
  }
}

}  // namespace
}  // namespace pagoda::engine
