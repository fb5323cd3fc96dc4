#include "engine/text/detokenizer.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/text/utf8.h"
#include "tests/fixtures/byte_tokenizer.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::engine {
namespace {

std::unique_ptr<Tokenizer> MakeTokenizer(const fixtures::ByteTokenizerOptions& options) {
  fixtures::ModelFiles files;
  files.tokenizer = fixtures::ByteTokenizer(options);
  files.tokenizer_config = fixtures::ByteTokenizerConfig(options);
  return Tokenizer::Load(fixtures::WriteModelDir(files).path()).value();
}

// The pieces of a stream; each must be valid on its own.
std::vector<std::string> PiecesOf(const Tokenizer& tokenizer,
                                  const std::vector<TokenId>& ids,
                                  bool skip_special) {
  Detokenizer detokenizer(&tokenizer, skip_special);
  std::vector<std::string> pieces;
  for (const TokenId id : ids) detokenizer.Append(id, &pieces.emplace_back());
  detokenizer.Finish(&pieces.emplace_back());
  for (const std::string& piece : pieces) EXPECT_TRUE(IsValidUtf8(piece));
  return pieces;
}

std::string Join(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

// B001: a character that two or three tokens share comes once and whole.
TEST(Detokenizer, B001SplitCharactersComeWhole) {
  const auto tokenizer = MakeTokenizer({.extra_tokens = {"\xF0\x9F\xAB"}});
  const TokenId extra = fixtures::IdsOf({}).extra;
  using P = std::vector<std::string>;
  EXPECT_EQ(PiecesOf(*tokenizer, {264, 0x8D}, true), P({"", "\xF0\x9F\x98\x8D", ""}));
  EXPECT_EQ(PiecesOf(*tokenizer, {263, 0xAB, 0xA0}, true), P({"", "", "\xF0\x9F\xAB\xA0", ""}));
  EXPECT_EQ(PiecesOf(*tokenizer, {extra, 0xA0, 'a'}, true), P({"", "\xF0\x9F\xAB\xA0", "a", ""}));
  // One that never completes is one U+FFFD, at the end.
  EXPECT_EQ(PiecesOf(*tokenizer, {'a', 264}, true), P({"a", "", "\uFFFD"}));
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{'a', 264}, true), "a\uFFFD");
}

// B015: bytes that are no text.
TEST(Detokenizer, B015StrayBytesAreMaximalSubparts) {
  const auto tokenizer = MakeTokenizer({});
  const std::vector<TokenId> ids = {
      0x80, 0xC0, 0x80, 0xED, 0xA0, 0x80, 0xF5, 0x80, 0x80, 0x80, 'o', 'k'};
  std::string expected;
  for (int i = 0; i < 10; ++i) expected += "\uFFFD";
  EXPECT_EQ(Join(PiecesOf(*tokenizer, ids, true)), expected + "ok");
  EXPECT_EQ(tokenizer->Decode(ids, true), expected + "ok");
}

TEST(Detokenizer, EveryChunkingOfAByteStreamGivesTheSameText) {
  // All ways to cut these bytes into tokens: characters of every length, broken ones, and controls.
  const std::string bytes = "a\xC3\xA9\xF0\x9F\x98\x8D\xE2\x82\xF0\x9F\x80z";
  std::string whole;
  const size_t num_held_back = AppendUtf8(bytes, &whole);
  ASSERT_EQ(num_held_back, 0u);
  const size_t num_cuts = bytes.size() - 1;
  for (uint32_t cuts = 0; cuts < (1u << num_cuts); ++cuts) {
    std::string text;
    std::string pending;
    const auto add = [&](const std::string& chunk) {
      pending += chunk;
      const size_t held_back = AppendUtf8(pending, &text);
      ASSERT_LE(held_back, 3u);
      pending.erase(0, pending.size() - held_back);
    };
    size_t begin = 0;
    for (size_t i = 0; i < num_cuts; ++i) {
      if ((cuts >> i & 1) == 0) continue;
      add(bytes.substr(begin, i + 1 - begin));
      begin = i + 1;
    }
    add(bytes.substr(begin));
    ASSERT_EQ(text, whole) << cuts;
  }
}

TEST(Detokenizer, RandomTokensAddUpToTheWholeText) {
  const auto tokenizer = MakeTokenizer({.extra_tokens = {"\xF0\x9F\xAB",
                                                         "\xA0 x",
                                                         "\xE2\x82\xAC\xE2",
                                                         "\x82"
                                                         "b"}});
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<TokenId> ids(1 + random() % 12);
    std::string bytes;
    for (TokenId& id : ids) {
      id = random() % (tokenizer->vocab_size() + 2);  // two unknown ids among them
      if (!tokenizer->IsSpecial(id)) bytes += std::string(tokenizer->TokenBytes(id));
    }
    std::string expected;
    if (AppendUtf8(bytes, &expected) > 0) expected += "\uFFFD";
    ASSERT_EQ(Join(PiecesOf(*tokenizer, ids, true)), expected);
    ASSERT_EQ(tokenizer->Decode(ids, true), expected);
  }
}

TEST(Detokenizer, SpecialTokensAreTextOnlyWhenAskedFor) {
  const auto tokenizer = MakeTokenizer({});
  const auto ids = fixtures::IdsOf({});
  const std::vector<TokenId> sequence = {ids.bos, 'h', 'i', ids.im_end, ids.eos};
  EXPECT_EQ(tokenizer->Decode(sequence, true), "hi");
  EXPECT_EQ(tokenizer->Decode(sequence, false), "<|bos|>hi<|im_end|><|eos|>");
  // A special token that is left out does not break a character that goes around it.
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{0xC3, ids.pad, 0xA9}, true), "é");
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{0xC3, ids.pad, 0xA9}, false),
            "\uFFFD<|pad|>\uFFFD");
}

TEST(Detokenizer, UnknownIdsAreNothing) {
  const auto tokenizer = MakeTokenizer({});
  EXPECT_EQ(
      tokenizer->Decode(std::vector<TokenId>{'a', -1, 100000, INT32_MAX, INT32_MIN, 'b'}, true),
      "ab");
}

}  // namespace
}  // namespace pagoda::engine
