#include "engine/text/tokenizer.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fixtures/byte_tokenizer.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::engine {
namespace {

using fixtures::ByteTokenizerOptions;
using fixtures::ModelFiles;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using nlohmann::json;

ModelFiles Files(const ByteTokenizerOptions& options = {}) {
  ModelFiles files;
  files.tokenizer = fixtures::ByteTokenizer(options);
  files.tokenizer_config = fixtures::ByteTokenizerConfig(options);
  return files;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const ModelFiles& files) {
  return Tokenizer::Load(fixtures::WriteModelDir(files).path());
}

json AddedToken(TokenId id, const std::string& content) {
  return {{"id", id},
          {"content", content},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", false}};
}

// Places in the text follow from the bytes that tokens add to it, which responses hold: they begin
// where the text begins, leave nothing out and end where it ends, also past an added token and in
// the middle of characters.
TEST(Tokenizer, B057BytesOfTokensAddUpToTheText) {
  ModelFiles files = Files();
  files.tokenizer["added_tokens"].push_back(AddedToken(300, "<mark>"));
  const auto tokenizer = Load(files).value();
  const std::string text = "na\u00EFve <mark>\u304B\u3099 \u30AC\u30AE<mark><mark>\U0001F600 end";
  const auto ids = tokenizer->Encode(text, {.add_special_tokens = false}).value();
  size_t offset = 0;
  int num_marks = 0;
  for (const TokenId id : ids) {
    const absl::string_view bytes =
        offset == 0 ? tokenizer->FirstTokenBytes(id) : tokenizer->TokenBytes(id);
    ASSERT_FALSE(bytes.empty());
    ASSERT_EQ(absl::string_view(text).substr(offset, bytes.size()), bytes) << "at " << offset;
    num_marks += id == 300 ? 1 : 0;
    offset += bytes.size();
  }
  EXPECT_EQ(offset, text.size());
  EXPECT_EQ(num_marks, 3);
}

constexpr EncodeOptions kParse = {.add_special_tokens = true, .parse_special_tokens = true};

TEST(Tokenizer, BosComesOnceHoweverItIsAsked) {
  const ByteTokenizerOptions options = {.adds_bos = true};
  const TokenId bos = fixtures::IdsOf(options).bos;
  const auto tokenizer = Load(Files(options)).value();
  EXPECT_THAT(tokenizer->Encode("hi", {}).value(), ElementsAre(bos, 'h', 'i'));
  EXPECT_THAT(tokenizer->Encode("hi", {.add_special_tokens = false}).value(),
              ElementsAre('h', 'i'));
  EXPECT_THAT(tokenizer->Encode("<|bos|>hi", kParse).value(), ElementsAre(bos, 'h', 'i'));
  EXPECT_THAT(tokenizer->Encode("", {}).value(), ElementsAre(bos));
  EXPECT_THAT(tokenizer->Encode("<|bos|>", kParse).value(), ElementsAre(bos));
  // What the text itself repeats stays.
  EXPECT_THAT(tokenizer->Encode("<|bos|><|bos|>", kParse).value(), ElementsAre(bos, bos));
}

// B036: without BOS an empty text is no token at all.
TEST(Tokenizer, B036EmptyTextWithoutBosIsEmpty) {
  EXPECT_THAT(Load(Files()).value()->Encode("", {}).value(), IsEmpty());
}

TEST(Tokenizer, TextBecomesASpecialTokenOnlyWhenAsked) {
  const auto tokenizer = Load(Files()).value();
  const auto ids = fixtures::IdsOf({});
  const std::string text = "<|im_start|>system<|im_end|>";
  const std::vector<TokenId> plain = tokenizer->Encode(text, {}).value();
  for (const TokenId id : plain) EXPECT_FALSE(tokenizer->IsSpecial(id));
  EXPECT_EQ(tokenizer->Decode(plain, true), text);
  EXPECT_THAT(tokenizer->Encode(text, kParse).value(),
              ElementsAre(ids.im_start, 's', 'y', 's', 't', 'e', 'm', ids.im_end));
}

// B051: of a rendered chat only what the template wrote may be a control token; the rest is encoded
// as if it were not marked.
TEST(Tokenizer, B051OnlyTrustedTextBecomesASpecialToken) {
  const auto tokenizer = Load(Files()).value();
  const auto ids = fixtures::IdsOf({});
  const std::string mark = "<|im_end|>";
  const auto encode = [&](const std::string& text, const std::string& trusted) {
    return tokenizer
        ->Encode(text,
                 {.add_special_tokens = false, .parse_special_tokens = true, .trusted = trusted})
        .value();
  };
  const std::vector<TokenId> plain = tokenizer->Encode(mark, {.add_special_tokens = false}).value();
  const std::string yes(mark.size(), '\1'), no(mark.size(), '\0');
  EXPECT_THAT(encode(mark, yes), ElementsAre(ids.im_end));
  EXPECT_EQ(encode(mark, no), plain);
  // One byte of the user's is enough: a token that template and user spell together is none.
  for (size_t i = 0; i < mark.size(); ++i) {
    std::string partly = yes;
    partly[i] = '\0';
    EXPECT_EQ(encode(mark, partly), plain) << i;
  }
  std::vector<TokenId> expected = plain;
  expected.push_back(ids.im_end);
  EXPECT_EQ(encode(mark + mark, no + yes), expected);
  // Trust does not cut text: "th" and "e" make " the" whoever wrote them.
  EXPECT_THAT(encode(" the", std::string("\1\1\0\0", 4)), ElementsAre(258));
}

// The model's own vocabulary and merges cannot make one either.
TEST(Tokenizer, NoMergeAndNoWholeWordMakesASpecialToken) {
  for (const bool ignore_merges : {false, true}) {
    ModelFiles files = Files({.extra_tokens = {"go"}});
    const TokenId go = fixtures::IdsOf({}).extra;
    files.tokenizer["model"]["ignore_merges"] = ignore_merges;
    files.tokenizer["model"]["merges"].push_back("g o");
    EXPECT_THAT(Load(files).value()->Encode("go", {}).value(), ElementsAre(go));
    json special = AddedToken(go, "go");
    special["special"] = true;
    files.tokenizer["added_tokens"].push_back(special);
    EXPECT_THAT(Load(files).value()->Encode("go", {}).value(), ElementsAre('g', 'o'));
    EXPECT_THAT(Load(files).value()->Encode("go", kParse).value(), ElementsAre(go));
  }
}

TEST(Tokenizer, AddedTokensThatAreNotSpecialAreAlwaysMatched) {
  ModelFiles files = Files();
  const TokenId id = fixtures::IdsOf({}).vocab_size;
  files.tokenizer["added_tokens"].push_back(AddedToken(id, "<think>"));
  files.tokenizer["added_tokens"].push_back(AddedToken(id + 1, "<think>>"));
  const auto tokenizer = Load(files).value();
  EXPECT_EQ(tokenizer->vocab_size(), id + 2);
  EXPECT_THAT(tokenizer->Encode("a<think>b", {}).value(), ElementsAre('a', id, 'b'));
  EXPECT_THAT(tokenizer->Encode("<think>>", {}).value(), ElementsAre(id + 1));  // the longest
  EXPECT_THAT(tokenizer->Encode("<thin<think>", {}).value(), ElementsAre('<', 256, 259, id));
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{id}, true), "<think>");
}

TEST(Tokenizer, AddedTokensStripAndStandAlone) {
  const TokenId id = fixtures::IdsOf({}).vocab_size;
  const auto load = [&](const char* flag) {
    ModelFiles files = Files();
    json token = AddedToken(id, "<m>");
    token[flag] = true;
    files.tokenizer["added_tokens"].push_back(token);
    return Load(files).value();
  };
  EXPECT_THAT(load("lstrip")->Encode("a \u3000\n<m> b", {}).value(),
              ElementsAre('a', id, ' ', 'b'));
  EXPECT_THAT(load("rstrip")->Encode("a <m> \u00A0b", {}).value(), ElementsAre('a', ' ', id, 'b'));
  const auto single = load("single_word");
  EXPECT_THAT(single->Encode("x <m>-", {}).value(), ElementsAre('x', ' ', id, '-'));
  EXPECT_THAT(single->Encode("x<m>", {}).value(), ElementsAre('x', '<', 'm', '>'));
  EXPECT_THAT(single->Encode("<m>é", {}).value(), ElementsAre('<', 'm', '>', 0xC3, 0xA9));
}

TEST(Tokenizer, NormalizedTokensAreMatchedAfterTheOthers) {
  ModelFiles files = Files();
  const TokenId id = fixtures::IdsOf({}).vocab_size;
  json normalized = AddedToken(id, "ab<");
  normalized["normalized"] = true;
  files.tokenizer["added_tokens"].push_back(normalized);
  files.tokenizer["added_tokens"].push_back(AddedToken(id + 1, "<m>"));
  EXPECT_THAT(Load(files).value()->Encode("ab<m>ab<", {}).value(),
              ElementsAre('a', 'b', id + 1, id));
}

// B058: both spellings of merges, and what ignore_merges changes.
TEST(Tokenizer, B058MergesAsStringsAndAsPairsAreTheSame) {
  const auto strings = Load(Files()).value();
  const auto pairs = Load(Files({.merges_as_pairs = true})).value();
  for (const std::string text : {"the thin  the", "in\xF0\x9F\x98\x8D there", "other \n tether"}) {
    EXPECT_EQ(strings->Encode(text, {}).value(), pairs->Encode(text, {}).value()) << text;
  }
  EXPECT_THAT(pairs->Encode("the  in", {}).value(), ElementsAre(257, ' ', ' ', 259));
}

TEST(Tokenizer, B058IgnoreMergesTakesTheWholeWord) {
  ModelFiles files = Files({.extra_tokens = {" fox"}});
  const TokenId fox = fixtures::IdsOf({}).extra;
  EXPECT_THAT(Load(files).value()->Encode(" fox", {}).value(), ElementsAre(' ', 'f', 'o', 'x'));
  files.tokenizer["model"]["ignore_merges"] = true;
  EXPECT_THAT(Load(files).value()->Encode(" fox fo", {}).value(), ElementsAre(fox, ' ', 'f', 'o'));
}

TEST(Tokenizer, UnknownBytesAreTheUnknownTokenOrAnError) {
  ModelFiles files = Files();
  files.tokenizer["model"]["vocab"].erase("z");
  const absl::Status status = Load(files).value()->Encode("az", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("0x7A"));
  files.tokenizer["model"]["unk_token"] = "?";
  EXPECT_THAT(Load(files).value()->Encode("azzb", {}).value(), ElementsAre('a', '?', '?', 'b'));
  files.tokenizer["model"]["fuse_unk"] = true;
  EXPECT_THAT(Load(files).value()->Encode("azzb", {}).value(), ElementsAre('a', '?', 'b'));
}

// B016: what is not UTF-8 is refused without repeating it; NUL is text.
TEST(Tokenizer, B016TextMustBeUtf8) {
  const auto tokenizer = Load(Files()).value();
  for (const std::string text : {"a\xFF\xFE", "\xED\xA0\x80", "caf\xE9"}) {
    const absl::Status status = tokenizer->Encode(text, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "text is not valid UTF-8");
  }
  EXPECT_THAT(tokenizer->Encode(absl::string_view("a\0b", 3), {}).value(),
              ElementsAre('a', 0, 'b'));
}

TEST(Tokenizer, OneLongWordTakesLittleTime) {
  const auto tokenizer = Load(Files()).value();
  std::string word;
  while (word.size() < 1 << 20) word += "thetherin";
  const std::vector<TokenId> ids = tokenizer->Encode(word, {}).value();
  EXPECT_EQ(tokenizer->Decode(ids, true), word);
  EXPECT_LT(ids.size(), word.size() / 2);
}

TEST(Tokenizer, ManyThreadsEncodeAtOnce) {
  const auto tokenizer = Load(Files()).value();
  const std::string text = "the thin other one, in there \xF0\x9F\x98\x8D " + std::string(100, 'x');
  const std::vector<TokenId> expected = tokenizer->Encode(text, {}).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round)
        ASSERT_EQ(tokenizer->Encode(text, {}).value(), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TokenizerConfig, TokensInTheirSpellings) {
  ModelFiles files = Files();
  files.tokenizer_config["eos_token"] = {{"content", "<|im_end|>"}, {"special", true}};
  files.tokenizer_config["bos_token"] = nullptr;
  files.other_files["ignored.json"] = "{";
  auto tokenizer = Load(files).value();
  EXPECT_EQ(tokenizer->eos_token_id(), fixtures::IdsOf({}).im_end);
  EXPECT_EQ(tokenizer->bos_token_id(), absl::nullopt);

  files.other_files.clear();
  files.tokenizer_config = nullptr;
  tokenizer = Load(files).value();
  EXPECT_EQ(tokenizer->eos_token_id(), absl::nullopt);

  files.tokenizer_config = {{"eos_token", "<|not there|>"}, {"model_max_length", 1e30}};
  EXPECT_EQ(Load(files).value()->eos_token_id(), absl::nullopt);
  // Some published files hold an integer of 31 digits.
  files.tokenizer_config = nullptr;
  files.other_files["tokenizer_config.json"] =
      R"({"model_max_length": 1000000000000000019884624838656})";
  EXPECT_TRUE(Load(files).ok());
}

TEST(TokenizerLoad, NoFileIsNotFound) {
  EXPECT_EQ(Load(ModelFiles()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::Load("/no/such/folder").status().code(), absl::StatusCode::kNotFound);
}

struct BrokenFile {
  const char* name;
  std::function<void(ModelFiles&)> break_it;
  std::vector<std::string> parts_of_message;
};

TEST(TokenizerLoad, BrokenFilesAreNamedWithTheirElement) {
  const auto set = [](const char* pointer, json value) {
    return [=](ModelFiles& files) { files.tokenizer[json::json_pointer(pointer)] = value; };
  };
  const BrokenFile kCases[] = {
      {"not JSON",
       [](ModelFiles& f) { f.other_files["tokenizer.json"] = "{"; },
       {"tokenizer.json: not valid JSON"}},
      {"a list",
       [](ModelFiles& f) { f.tokenizer = json::array(); },
       {"tokenizer.json", "expected an object"}},
      {"config",
       [](ModelFiles& f) { f.other_files["tokenizer_config.json"] = "[1"; },
       {"tokenizer_config.json: not a"}},
      {"eos",
       [](ModelFiles& f) { f.tokenizer_config["eos_token"] = 7; },
       {"tokenizer_config.json: eos_token"}},
      {"model", set("/model", nullptr), {"model"}},
      {"type", set("/model/type", "Other"), {"model: type \"Other\" is not supported"}},
      {"vocab", set("/model/vocab", 7), {"model.vocab: expected an object"}},
      {"id", set("/model/vocab/a", "x"), {"model.vocab", "\"a\"", "not an integer"}},
      {"negative", set("/model/vocab/a", -1), {"\"a\" has id -1"}},
      {"large", set("/model/vocab/a", 1u << 31), {"\"a\" has id 2147483648", "expected 0 to"}},
      {"twice", set("/model/vocab/a", 98), {"id 98 is given to both"}},
      {"merges", set("/model/merges", json::object()), {"model.merges: expected an array"}},
      {"merge", set("/model/merges/1", "a"), {"model.merges: merge 1", "expected \"a b\""}},
      {"three", set("/model/merges/1", "a b c"), {"merge 1"}},
      {"numbers", set("/model/merges/1", {1, 2}), {"merge 1"}},
      {"dangling", set("/model/merges/1", "a z"), {"merge 1: \"az\" is not in the vocabulary"}},
      {"part", set("/model/merges/1", "qq z"), {"merge 1: \"qq\" is not in the vocabulary"}},
      {"prefix",
       set("/model/continuing_subword_prefix", "##"),
       {"continuing_subword_prefix \"##\""}},
      {"dropout", set("/model/dropout", 0.1), {"model.dropout"}},
      {"unknown", set("/model/unk_token", "<none>"), {"model.unk_token: \"<none>\""}},
      {"normalizer",
       set("/normalizer", {{"type", "Other"}}),
       {"normalizer: type \"Other\" is not supported"}},
      {"pre",
       set("/pre_tokenizer", {{"type", "Other"}}),
       {"pre_tokenizer: type \"Other\" is not supported"}},
      {"post",
       set("/post_processor", {{"type", "BertProcessing"}}),
       {"post_processor: \"cls\" is missing"}},
      {"post type",
       set("/post_processor", {{"type", "Other"}}),
       {"post_processor: type \"Other\" is not supported"}},
      {"decoder", set("/decoder", {{"type", "CTC"}}), {"decoder: type \"CTC\" is not supported"}},
      {"added", set("/added_tokens/0/id", "x"), {"added_tokens[0].id: expected an integer"}},
      {"added id", set("/added_tokens/0/id", 97), {"id 97 is given to both \"a\" and \"<|bos|>\""}},
      {"content", set("/added_tokens/2/content", nullptr), {"added_tokens[2].content"}},
  };
  for (const BrokenFile& c : kCases) {
    ModelFiles files = Files();
    c.break_it(files);
    const absl::Status status = Load(files).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.name << ": " << status;
    for (const std::string& part : c.parts_of_message) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part)) << c.name;
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("/pagoda-fixture-")) << c.name;
  }
}

TEST(TokenizerLoad, BrokenTemplatesAreNamed) {
  const auto set = [](const char* pointer, json value) {
    ModelFiles files = Files({.adds_bos = true});
    files.tokenizer["post_processor"][json::json_pointer(pointer)] = value;
    return std::string(Load(files).status().message());
  };
  EXPECT_THAT(set("/single/1/Sequence/id", "B"),
              HasSubstr("post_processor.single[1]: expected the sequence A once"));
  EXPECT_THAT(set("/single", json::array()),
              HasSubstr("post_processor.single: expected the sequence A once"));
  EXPECT_THAT(set("/single/0/SpecialToken/id", "<x>"), HasSubstr("\"<x>\" is missing"));
  EXPECT_THAT(set("/special_tokens/<|bos|>/ids/0", 9999),
              HasSubstr("ids[0]: id 9999 is not in the vocabulary"));
}

TEST(TokenizerLoad, TemplatesAndSequencesOfThem) {
  ModelFiles files = Files({.adds_bos = true});
  const auto ids = fixtures::IdsOf({});
  json post = files.tokenizer["post_processor"];
  post["single"].push_back({{"SpecialToken", {{"id", "<|eos|>"}, {"type_id", 0}}}});
  post["special_tokens"]["<|eos|>"] = {
      {"id", "<|eos|>"}, {"ids", {ids.eos, ids.pad}}, {"tokens", json::array()}};
  files.tokenizer["post_processor"] = {{"type", "Sequence"},
                                       {"processors", {{{"type", "ByteLevel"}}, post}}};
  EXPECT_THAT(Load(files).value()->Encode("a", {}).value(),
              ElementsAre(ids.bos, 'a', ids.eos, ids.pad));
}

}  // namespace
}  // namespace pagoda::engine
