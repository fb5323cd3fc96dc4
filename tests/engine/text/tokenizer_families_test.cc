// Small tokenizers of each family. Expected ids and texts are what the library `tokenizers` 0.23
// gives for the same files; tests/peers compares far more.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/text/byte_alphabet.h"
#include "engine/text/tokenizer.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::engine {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

constexpr char kMark[] = "\u2581";

json TokenAdded(TokenId id, const std::string& content, const json& changes = json::object()) {
  json token = {{"id", id},
                {"content", content},
                {"single_word", false},
                {"lstrip", false},
                {"rstrip", false},
                {"normalized", false},
                {"special", true}};
  token.update(changes);
  return token;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const json& tokenizer) {
  return Tokenizer::Load(fixtures::WriteModelDir({.tokenizer = tokenizer}).path());
}

struct Case {
  std::string text;
  Ids ids;
  std::string decoded;               // without special tokens
  std::string decoded_with_special;  // empty: the same
};

void ExpectCases(const json& file, const std::vector<Case>& cases) {
  const auto tokenizer = Load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const auto ids =
        (*tokenizer)->Encode(c.text, {.add_special_tokens = false, .parse_special_tokens = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, c.ids);
    EXPECT_EQ((*tokenizer)->Decode(*ids, true), c.decoded);
    EXPECT_EQ((*tokenizer)->Decode(*ids, false),
              c.decoded_with_special.empty() ? c.decoded : c.decoded_with_special);
  }
}

// A BPE model in SentencePiece's alphabet: <unk>, <s>, </s>, 256 bytes, then pieces.
json SentencePieceBpe() {
  const std::string m = kMark;
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char spelling[8];
    std::snprintf(spelling, sizeof(spelling), "<0x%02X>", byte);
    vocab[spelling] = 3 + byte;
  }
  TokenId next = 259;
  for (const std::string& piece : {m,
                                   std::string("r"),
                                   std::string("e"),
                                   std::string("d"),
                                   std::string("f"),
                                   std::string("o"),
                                   std::string("x"),
                                   std::string("b"),
                                   std::string("l"),
                                   std::string("u"),
                                   std::string("w"),
                                   std::string("n"),
                                   m + "r",
                                   std::string("ed"),
                                   m + "red",
                                   std::string("fo"),
                                   m + "fo",
                                   m + "fox",
                                   std::string("bl"),
                                   std::string("ue"),
                                   m + "b",
                                   std::string("owl"),
                                   m + "owl",
                                   std::string("ow"),
                                   std::string("en"),
                                   std::string("end"),
                                   m + "e",
                                   m + "end",
                                   m + m,
                                   m + "o"})
    vocab[piece] = next++;
  return {{"added_tokens", {TokenAdded(0, "<unk>"), TokenAdded(1, "<s>"), TokenAdded(2, "</s>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", m}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocab},
            {"merges",
             {m + " r",
              "e d",
              m + "r ed",
              "f o",
              m + " fo",
              m + "fo x",
              "b l",
              "u e",
              m + " b",
              "o w",
              "ow l",
              m + " owl",
              "e n",
              "en d",
              m + " e",
              m + " end",
              m + " " + m,
              m + " o"}},
            {"byte_fallback", true},
            {"fuse_unk", true},
            {"unk_token", "<unk>"}}}};
}

json WithMetaspace(const json& members) {
  json file = SentencePieceBpe();
  json metaspace = {{"type", "Metaspace"}, {"replacement", kMark}};
  metaspace.update(members);
  file["pre_tokenizer"] = metaspace;
  file["decoder"] = metaspace;
  return file;
}

constexpr char kFoxes[] = "red fox<s>blue owl <s> end";

TEST(TokenizerFamilies, Llama2PrependsBeforeEverySection) {
  json file = SentencePieceBpe();
  file["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Prepend"}, {"prepend", kMark}},
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMark}}}}};
  ExpectCases(file,
              {{kFoxes,
                {273, 276, 1, 259, 277, 278, 281, 259, 1, 259, 286},
                "red fox blue owl   end",
                "red fox<s> blue owl <s>  end"},
               {" red", {259, 273}, " red", ""},
               {"red  fox", {273, 259, 276}, "red  fox", ""},
               {"é<unk>", {259, 198, 172, 0}, "é", "é<unk>"}});
}

// Also: the blank of the first token goes, whichever scheme put it there.
TEST(TokenizerFamilies, B052MetaspaceSchemes) {
  ExpectCases(WithMetaspace({{"prepend_scheme", "first"}}),
              {{kFoxes,
                {273, 276, 1, 277, 278, 281, 259, 1, 286},
                "red foxblue owl  end",
                "red fox<s>blue owl <s> end"}});
  ExpectCases(WithMetaspace({{"prepend_scheme", "always"}}),
              {{kFoxes,
                {273, 276, 1, 259, 277, 278, 281, 259, 1, 286},
                "red fox blue owl  end",
                "red fox<s> blue owl <s> end"}});
  ExpectCases(WithMetaspace({{"prepend_scheme", "never"}}),
              {{kFoxes,
                {260, 272, 276, 1, 277, 278, 281, 259, 1, 286},
                "red foxblue owl  end",
                "red fox<s>blue owl <s> end"}});
}

TEST(TokenizerFamilies, B054OldAndNewSpellingsOfMetaspace) {
  const auto ids = [](const json& members) {
    return Load(WithMetaspace(members)).value()->Encode("red", {}).value();
  };
  const Ids prepended = {273}, bare = {260, 272};
  EXPECT_EQ(ids({{"add_prefix_space", true}}), prepended);
  EXPECT_EQ(ids({{"prepend_scheme", "always"}}), prepended);
  EXPECT_EQ(ids({{"add_prefix_space", false}}), bare);
  EXPECT_EQ(ids({{"prepend_scheme", "never"}}), bare);
  // The new field wins; what is not known is left alone.
  EXPECT_EQ(ids({{"add_prefix_space", false}, {"prepend_scheme", "always"}, {"later", 1}}),
            prepended);
  EXPECT_EQ(ids({{"add_prefix_space", true}, {"prepend_scheme", "never"}}), bare);
}

TEST(TokenizerFamilies, AddedTokensTakeWhiteSpaceAndKeepToWords) {
  json file = SentencePieceBpe();
  file["added_tokens"] = {
      TokenAdded(0, "<unk>"),
      TokenAdded(1, "<s>", {{"lstrip", true}}),
      TokenAdded(2, "</s>", {{"rstrip", true}}),
      TokenAdded(300, "fox", {{"single_word", true}, {"special", false}, {"normalized", true}})};
  // As with the library, but for the id: a token that the vocabulary lacks keeps the one it is
  // given.
  ExpectCases(
      file,
      {{"red <s> end </s>  fox",
        {260, 272, 1, 35, 284, 35, 2, 300},
        "red end fox",
        "red<s> end </s>fox"},
       {"redfox fox, fox", {260, 272, 274, 265, 35, 300, 47, 35, 300}, "redfox fox, fox", ""}});
}

TEST(TokenizerFamilies, UnigramTakesTheBestWay) {
  const std::string m = kMark;
  const json metaspace = {{"type", "Metaspace"}, {"replacement", m}, {"prepend_scheme", "always"}};
  json vocab = json::array();
  for (const auto& [piece, score] : std::vector<std::pair<std::string, double>>{{"<unk>", 0.0},
                                                                                {m, -2.0},
                                                                                {"a", -3.0},
                                                                                {"b", -3.5},
                                                                                {"ab", -4.0},
                                                                                {m + "a", -3.2},
                                                                                {"abc", -9.0},
                                                                                {"c", -4.0},
                                                                                {"</s>", 0.0},
                                                                                {m + "ab", -8.0}})
    vocab.push_back(json::array({piece, score}));
  json file = {{"added_tokens", {TokenAdded(0, "<unk>"), TokenAdded(8, "</s>")}},
               {"normalizer", {{"type", "NFKC"}}},
               {"pre_tokenizer", metaspace},
               {"decoder", metaspace},
               {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}}}};
  ExpectCases(file,
              {{"ab", {1, 4}, "ab", ""},
               {"abc abc", {1, 4, 7, 1, 4, 7}, "abc abc", ""},
               {"\uFF41b zz q", {1, 4, 1, 0, 1, 0}, "ab  ", "ab <unk> <unk>"},
               {"a</s>b", {5, 8, 1, 3}, "a b", "a</s> b"}});
  // Plain text never becomes a control token, though the vocabulary spells it.
  const Ids plain = Load(file).value()->Encode("a</s>b", {}).value();
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 8), 0);
  file["model"]["unk_id"] = nullptr;
  EXPECT_THAT(std::string(Load(file).value()->Encode("z", {}).status().message()),
              HasSubstr("U+007A"));
}

TEST(TokenizerFamilies, WordPieceTakesTheLongestStart) {
  json vocab = json::object();
  for (const char* piece : {"[UNK]",
                            "[CLS]",
                            "[SEP]",
                            "un",
                            "##aff",
                            "##able",
                            "aff",
                            "##a",
                            ",",
                            "!",
                            "cafe",
                            "你",
                            "好",
                            "##s"})
    vocab[piece] = vocab.size();
  const json file = {
      {"added_tokens", {TokenAdded(0, "[UNK]"), TokenAdded(1, "[CLS]"), TokenAdded(2, "[SEP]")}},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", true},
        {"handle_chinese_chars", true},
        {"strip_accents", nullptr},
        {"lowercase", true}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor",
       {{"type", "BertProcessing"}, {"sep", {"[SEP]", 2}}, {"cls", {"[CLS]", 1}}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", "[UNK]"},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", 100},
        {"vocab", vocab}}}};
  ExpectCases(file,
              {{"Unaffable, CAFÉS!", {3, 4, 5, 8, 10, 13, 9}, "unaffable, cafes!", ""},
               {"你好 affa x", {11, 12, 6, 7, 0}, "你 好 affa", "你 好 affa [UNK]"},
               {std::string("un\0aff\u00AD", 8), {3, 4}, "unaff", ""}});
  EXPECT_EQ(Load(file).value()->Encode("un", {}).value(), (Ids{1, 3, 2}));
  EXPECT_EQ(
      Load(file).value()->Encode(std::string(200, 'a'), {.add_special_tokens = false}).value(),
      Ids{0});
}

json WordLevel(const json& pre_tokenizer) {
  return {{"added_tokens", {TokenAdded(0, "<unk>"), TokenAdded(1, "<s>")}},
          {"pre_tokenizer", pre_tokenizer},
          {"model",
           {{"type", "WordLevel"},
            {"unk_token", "<unk>"},
            {"vocab",
             {{"<unk>", 0},
              {"<s>", 1},
              {"red", 2},
              {"fox", 3},
              {"fo", 4},
              {"ab", 5},
              {"你好", 6},
              {"red ", 7},
              {"你好カー", 8},
              {"!", 9},
              {"привет", 10}}}}}};
}

TEST(TokenizerFamilies, WordLevel) {
  ExpectCases(WordLevel({{"type", "WhitespaceSplit"}}),
              {{"red fox  redfox", {2, 3, 0}, "red fox", "red fox <unk>"},
               {"<s>red", {1, 2}, "red", "<s> red"}});
  // Neither the word nor a token for unknown ones.
  json file = WordLevel({{"type", "WhitespaceSplit"}});
  file["model"]["unk_token"] = "none";
  EXPECT_EQ(Load(file).value()->Encode("red fish", {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  file["pre_tokenizer"] = {{"type", "ByteLevel"}};
  EXPECT_THAT(std::string(Load(file).status().message()),
              HasSubstr("model: a WordLevel model after the pre-tokenizer ByteLevel"));
}

TEST(TokenizerFamilies, FixedLengthPieces) {
  ExpectCases(
      WordLevel({{"type", "FixedLength"}, {"length", 2}}),
      {{"abfo你好x", {5, 4, 6, 0}, "ab fo 你好", "ab fo 你好 <unk>"}, {"a", {0}, "", "<unk>"}});
}

// A blank goes with what is before it, and is lost where nothing is; kana are Han.
TEST(TokenizerFamilies, PiecesOfOneScript) {
  ExpectCases(WordLevel({{"type", "UnicodeScripts"}}),
              {{" red 你好カー!foxпривет", {7, 8, 9, 3, 10}, "red  你好カー ! fox привет", ""},
               {"  ", {}, "", ""},
               // The library's table is of Unicode 9: an Arabic letter mark is of no script's.
               {"\u0627\u061C\u0627", {0, 0, 0}, "", "<unk> <unk> <unk>"}});
}

TEST(TokenizerFamilies, BytesSpelledByTheNormalizer) {
  json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    byte_alphabet::AppendCharacter(static_cast<uint8_t>(byte), &spelling);
    vocab[spelling] = byte;
  }
  vocab["\u0120a"] = 256;
  vocab["\u00C3\u00A9"] = 257;
  vocab["\u0120a\u00C3\u00A9"] = 258;
  const json file = {{"added_tokens", {TokenAdded(259, "<s>")}},
                     {"normalizer", {{"type", "ByteLevel"}}},
                     {"decoder", {{"type", "ByteLevel"}}},
                     {"model",
                      {{"type", "BPE"},
                       {"vocab", vocab},
                       {"merges", {"\u0120 a", "\u00C3 \u00A9", "\u0120a \u00C3\u00A9"}}}}};
  ExpectCases(file,
              {{" a\u00E9 b<s> a", {258, 32, 98, 259, 256}, " a\u00E9 b a", " a\u00E9 b<s> a"},
               {"\U0001F600", {240, 159, 152, 128}, "\U0001F600", ""}});
}

// A chat's marks go through normalizers: special tokens that are matched in normalized text are
// found in the template's text alone.
TEST(TokenizerFamilies, B051MarksFollowNormalization) {
  json file = SentencePieceBpe();
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "NFKC"}},
                          {{"type", "Replace"}, {"pattern", {{"Regex", "x+"}}}, {"content", ""}},
                          {{"type", "Lowercase"}}}}};
  file["added_tokens"] = {TokenAdded(0, "<unk>"), TokenAdded(1, "<s>", {{"normalized", true}})};
  const auto tokenizer = Load(file).value();
  const std::string text = "\uFF21xx<S>e\u0301<s>";
  const auto encode = [&](const std::string& trusted) {
    return tokenizer
        ->Encode(text,
                 {.add_special_tokens = false, .parse_special_tokens = true, .trusted = trusted})
        .value();
  };
  const auto count = [](const Ids& ids) { return std::count(ids.begin(), ids.end(), 1); };
  EXPECT_EQ(count(encode(std::string(text.size(), '\1'))), 2);
  EXPECT_EQ(count(encode(std::string(text.size(), '\0'))), 0);
  std::string last(text.size(), '\0');
  for (size_t i = text.size() - 3; i < text.size(); ++i) last[i] = '\1';
  EXPECT_EQ(count(encode(last)), 1);
  EXPECT_EQ(encode(last).back(), 1);
  last[text.size() - 1] = '\0';
  EXPECT_EQ(count(encode(last)), 0);
}

// What decoders leave open is refused by name.
TEST(TokenizerFamilies, DecodersThatCannotStreamAreNamed) {
  const std::pair<json, const char*> kCases[] = {
      {{{"type", "CTC"}}, "decoder: type \"CTC\" is not supported"},
      {{{"type", "Sequence"},
        {"decoders",
         {{{"type", "Fuse"}}, {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}}}}},
       "decoder.decoders[1]: \"stop\" after \"Fuse\""},
      {{{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteFallback"}}}}},
       "decoder.decoders[1]: type \"ByteFallback\" after \"Fuse\""}};
  for (const auto& [decoder, message] : kCases) {
    json file = SentencePieceBpe();
    file["decoder"] = decoder;
    EXPECT_THAT(std::string(Load(file).status().message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace pagoda::engine
