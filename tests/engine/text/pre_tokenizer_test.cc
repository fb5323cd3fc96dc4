#include "engine/text/pre_tokenizer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/text/json_element.h"

namespace pagoda::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Pieces = std::vector<std::string>;

absl::StatusOr<PreTokenizerChain> Make(const std::string& json) {
  const auto document = JsonDocument::Parse(json, "tokenizer.json");
  if (!document.ok()) return document.status();
  return MakePreTokenizer(document->root());
}

Pieces Split(const std::string& json, const std::string& text) {
  const auto chain = Make(json);
  if (!chain.ok()) return {chain.status().ToString()};
  PreTokenizerScratch scratch;
  std::vector<absl::string_view> pieces;
  const absl::Status status = chain->pre_tokenizer->Split(text, scratch, &pieces);
  if (!status.ok()) return {status.ToString()};
  Pieces copies;
  for (const absl::string_view piece : pieces) copies.emplace_back(piece);
  return copies;
}

std::string SplitJson(const std::string& pattern,
                      const std::string& behavior,
                      bool invert = false) {
  return R"({"type": "Split", "pattern": )" + pattern + R"(, "behavior": ")" + behavior +
         R"(", "invert": )" + (invert ? "true" : "false") + "}";
}

// The example of the libraries' documentation.
TEST(Split, Behaviors) {
  const std::string text = "the-final--countdown";
  const std::string dash = R"({"String": "-"})";
  EXPECT_THAT(Split(SplitJson(dash, "Removed"), text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(Split(SplitJson(dash, "Isolated"), text),
              ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(Split(SplitJson(dash, "MergedWithPrevious"), text),
              ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(Split(SplitJson(dash, "MergedWithNext"), text),
              ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(Split(SplitJson(dash, "Contiguous"), text),
              ElementsAre("the", "-", "final", "--", "countdown"));
}

TEST(Split, BehaviorsAtTheEnds) {
  const std::string dash = R"({"Regex": "-"})";
  EXPECT_THAT(Split(SplitJson(dash, "Removed"), "--"), IsEmpty());
  EXPECT_THAT(Split(SplitJson(dash, "MergedWithPrevious"), "-a-"), ElementsAre("-", "a-"));
  EXPECT_THAT(Split(SplitJson(dash, "MergedWithNext"), "-a-"), ElementsAre("-a", "-"));
  EXPECT_THAT(Split(SplitJson(dash, "Contiguous"), "--a--"), ElementsAre("--", "a", "--"));
}

TEST(Split, InvertSwapsMatchesAndGaps) {
  const std::string words = R"({"Regex": "[a-z]+"})";
  EXPECT_THAT(Split(SplitJson(words, "Removed", true), "ab, cd!"), ElementsAre("ab", "cd"));
  EXPECT_THAT(Split(SplitJson(words, "MergedWithPrevious", true), "ab, cd!"),
              ElementsAre("ab, ", "cd!"));
  EXPECT_THAT(Split(SplitJson(words, "Isolated", true), "ab, cd!"),
              ElementsAre("ab", ", ", "cd", "!"));
}

TEST(Split, StringIsLiteralAndRegexIsNot) {
  EXPECT_THAT(Split(SplitJson(R"({"String": "\\p{N}"})", "Isolated"), "a1\\p{N}b"),
              ElementsAre("a1", "\\p{N}", "b"));
  EXPECT_THAT(Split(SplitJson(R"({"Regex": "\\p{N}"})", "Isolated"), "a1\\p{N}b"),
              ElementsAre("a", "1", "\\p{N}b"));
  EXPECT_THAT(Split(SplitJson(R"({"String": ""})", "Isolated"), "ab"), ElementsAre("ab"));
}

TEST(Split, EmptyMatchesCutAndVanish) {
  EXPECT_THAT(Split(SplitJson(R"j({"Regex": "(?=b)"})j", "Isolated"), "abcb"),
              ElementsAre("a", "bc", "b"));
  EXPECT_THAT(Split(SplitJson(R"({"Regex": "x*"})", "Isolated"), "é1"), ElementsAre("é", "1"));
}

TEST(Digits, RunsOrEach) {
  EXPECT_THAT(Split(R"({"type": "Digits", "individual_digits": false})", "a12b3٤"),
              ElementsAre("a", "12", "b", "3٤"));
  EXPECT_THAT(Split(R"({"type": "Digits", "individual_digits": true})", "a12b3٤"),
              ElementsAre("a", "1", "2", "b", "3", "٤"));
}

TEST(Punctuation, AsciiAndUnicode) {
  EXPECT_THAT(Split(R"({"type": "Punctuation", "behavior": "Contiguous"})", "a$b…!?c"),
              ElementsAre("a", "$", "b", "…!?", "c"));
  EXPECT_THAT(Split(R"({"type": "Punctuation"})", "a\\b`~"), ElementsAre("a", "\\", "b", "`", "~"));
}

TEST(ByteLevel, Gpt2PatternAndPrefixSpace) {
  const std::string plain = R"({"type": "ByteLevel", "add_prefix_space": false})";
  EXPECT_THAT(Split(plain, "I'll  go, 12 naïve\n\n x"),
              ElementsAre("I", "'ll", " ", " go", ",", " 12", " naïve", "\n\n", " x"));
  EXPECT_THAT(Split(R"({"type": "ByteLevel", "add_prefix_space": true})", "go on"),
              ElementsAre(" go", " on"));
  EXPECT_THAT(Split(R"({"type": "ByteLevel", "add_prefix_space": true})", " go"),
              ElementsAre(" go"));
  EXPECT_THAT(
      Split(R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": false})", "a b"),
      ElementsAre(" a b"));
}

TEST(Sequence, StepsAfterByteLevelSeeTheByteAlphabet) {
  // The shape of Falcon's. In the byte alphabet the second byte of é, A9, is the symbol ©, and the
  // bytes of ٤, D9 A4, are a letter and a symbol: no number.
  const std::string json = R"({"type": "Sequence", "pretokenizers": [
      {"type": "Punctuation", "behavior": "Contiguous"},
      {"type": "ByteLevel", "add_prefix_space": false},
      {"type": "Digits", "individual_digits": false},
      {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": false}]})";
  EXPECT_THAT(Split(json, "é12345!!٤"), ElementsAre("é", "123", "45", "!!", "٤"));
  // B2, the last byte of U+00B2, is the numeric character ² there.
  EXPECT_THAT(Split(json, "²"), ElementsAre("\xC2", "\xB2"));
}

TEST(Sequence, NestsAndKnowsItsAlphabet) {
  const auto chain =
      Make(R"({"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": [
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}]})");
  ASSERT_TRUE(chain.ok()) << chain.status();
  EXPECT_TRUE(chain->is_byte_level);
  EXPECT_EQ(chain->pre_tokenizer, nullptr);
  EXPECT_FALSE(Make(R"({"type": "Digits"})")->is_byte_level);
}

TEST(PreTokenizer, WhatIsNotSupportedIsNamed) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"type": "Metaspace"})", "tokenizer.json: type \"Metaspace\" is not supported"},
      {R"({"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}]})",
       "tokenizer.json: pretokenizers[0]: type \"Whitespace\" is not supported"},
      {R"({"type": "Sequence"})", "\"pretokenizers\" is missing"},
      {R"({"type": "Split", "behavior": "Isolated"})", "\"pattern\" is missing"},
      {R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Glued"})",
       "behavior \"Glued\""},
      {R"({"type": "Split", "pattern": {"Regex": "a("}, "behavior": "Isolated"})",
       "tokenizer.json: pattern.Regex: pattern does not compile"},
      {R"({"type": "Split", "pattern": {"Regex": "a{1,2}+"}, "behavior": "Isolated"})", "{n,m}+"},
      {R"({"type": "ByteLevel", "use_regex": "yes"})",
       "use_regex: expected a boolean, found a string"},
      {R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "ByteLevel"}]})",
       "pretokenizers[1]: a second ByteLevel"},
      {R"(["ByteLevel"])", "type \"\" is not supported"},
  };
  for (const auto& [json, message] : kCases) {
    const auto chain = Make(json);
    EXPECT_EQ(chain.status().code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(chain.status().message()), HasSubstr(message)) << json;
  }
}

TEST(PreTokenizer, ATextTooHardForThePatternIsAnErrorNotAHang) {
  const std::string json = SplitJson(R"j({"Regex": "(a|a)+[bc]"})j", "Isolated");
  EXPECT_THAT(Split(json, std::string(5000, 'a'))[0], HasSubstr("too repetitive"));
}

}  // namespace
}  // namespace pagoda::engine
