#include "engine/text/pre_tokenizer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
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

struct PublishedPattern {
  const char* name;
  const char* json;
  // Of kTexts, with '|' between pieces, as the library `tokenizers` cuts them.
  std::vector<std::string> pieces;
};

const std::string kTexts[] = {"1234567",
                              "I'LL you're",
                              "a\n\n\n###",
                              "  x",
                              "\ta\t\tb",
                              "a\r\nb",
                              "你好，世界",
                              "สวัสดีครับ",
                              "٣٤٥٦",
                              "👨\u200d👩\u200d👧!",
                              "e\u0301a\u0323"};

const PublishedPattern kPublished[] = {
    {"GPT-2",
     R"j({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})j",
     {"1234567",
      "I|'|LL| you|'re",
      "a|\n\n|\n|###",
      " | x",
      "\t|a|\t|\t|b",
      "a|\r|\n|b",
      "你好|，|世界",
      "สว|ั|สด|ี|คร|ั|บ",
      "٣٤٥٦",
      "👨\u200d👩\u200d👧!",
      "e|\u0301|a|\u0323"}},
    {"Llama-3",
     R"j({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})j",
     {"123|456|7",
      "I|'LL| you|'re",
      "a|\n\n\n|###",
      " | x",
      "\ta|\t|\tb",
      "a|\r\n|b",
      "你好|，世界",
      "สว|ัสด|ีคร|ับ",
      "٣٤٥|٦",
      "👨\u200d👩\u200d👧!",
      "e|\u0301a|\u0323"}},
    {"Qwen2",
     R"j({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})j",
     {"1|2|3|4|5|6|7",
      "I|'LL| you|'re",
      "a|\n\n\n|###",
      " | x",
      "\ta|\t|\tb",
      "a|\r\n|b",
      "你好|，世界",
      "สว|ัสด|ีคร|ับ",
      "٣|٤|٥|٦",
      "👨\u200d👩\u200d👧!",
      "e|\u0301a|\u0323"}},
    {"Command-R",
     R"j({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]})j",
     {"1|2|3|4|5|6|7",
      "I|'|LL| you|'re",
      "a|\n\n|\n|###",
      " | x",
      "\t|a|\t|\t|b",
      "a|\r|\n|b",
      "你好|，|世界",
      "สว|ั|สด|ี|คร|ั|บ",
      "٣|٤|٥|٦",
      "👨\u200d👩\u200d👧!",
      "e|\u0301|a|\u0323"}},
};

TEST(PreTokenizer, B055PublishedPatternsCutAsTheLibrary) {
  for (const PublishedPattern& published : kPublished) {
    for (size_t i = 0; i < published.pieces.size(); ++i) {
      EXPECT_EQ(absl::StrJoin(Split(published.json, kTexts[i]), "|"), published.pieces[i])
          << published.name;
    }
  }
}

// A pattern given as a String is that text, not a regular expression.
TEST(PreTokenizer, B056StringsAreLiteralAndRegexesAreNot) {
  EXPECT_THAT(Split(SplitJson(R"({"String": "\\p{N}"})", "Isolated"), R"(a1\p{N}2)"),
              ElementsAre("a1", R"(\p{N})", "2"));
  EXPECT_THAT(Split(SplitJson(R"({"Regex": "\\p{N}"})", "Isolated"), R"(a1b2)"),
              ElementsAre("a", "1", "b", "2"));
}

TEST(PreTokenizer, WhatIsNotSupportedIsNamed) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"type": "Metaspace"})", "tokenizer.json: \"replacement\" is missing"},
      {R"({"type": "Metaspace", "replacement": "ab"})", "replacement: expected one character"},
      {R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})",
       "prepend_scheme \"last\""},
      {R"({"type": "CharDelimiterSplit", "delimiter": ""})", "delimiter: expected one character"},
      {R"({"type": "Sequence", "pretokenizers": [{"type": "Other"}]})",
       "tokenizer.json: pretokenizers[0]: type \"Other\" is not supported"},
      {R"({"type": "FixedLength", "length": 0})", "length: expected at least 1"},
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
