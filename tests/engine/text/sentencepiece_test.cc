// Models without a tokenizer.json. Expected ids and texts are what the library `sentencepiece` 0.2
// gives for the same files; tests/peers compares far more.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/text/tokenizer.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::engine {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

constexpr char kBlankMark[] = "\u2581";

// Fields in protobuf's wire format; numbers and sizes below 128 take one byte, others two.
std::string Varint(uint32_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes.push_back(static_cast<char>(value & 127) | '\x80');
  bytes.push_back(static_cast<char>(value));
  return bytes;
}
std::string Number(uint32_t field, uint32_t value) { return Varint(field << 3) + Varint(value); }
std::string Bytes(uint32_t field, const std::string& bytes) {
  return Varint(field << 3 | 2) + Varint(static_cast<uint32_t>(bytes.size())) + bytes;
}
std::string Float(uint32_t field, float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return Varint(field << 3 | 5) + bytes;
}

std::string Piece(const std::string& text, float score, uint32_t type) {
  return Bytes(1, Bytes(1, text) + Float(2, score) + Number(3, type));
}

std::string Model(bool is_bpe, const std::string& more_pieces = "") {
  const std::string m = kBlankMark;
  std::string model = Piece("<unk>", 0, 2) + Piece("<s>", 0, 3) + Piece("</s>", 0, 3) +
                      Piece(m, -3, 1) + Piece("a", -4, 1) + Piece("b", -5, 1) +
                      Piece(m + "a", -1, 1) + Piece("ab", -2, 1) + Piece(m + "ab", -0.5f, 1) +
                      Piece("<|x|>", 0, 4);
  for (int byte = 0; byte < 256 && is_bpe; ++byte) {
    char spelling[8];
    std::snprintf(spelling, sizeof(spelling), "<0x%02X>", byte);
    model += Piece(spelling, 0, 6);
  }
  model += more_pieces;
  model += Bytes(2, Number(3, is_bpe ? 2 : 1) + Number(35, is_bpe ? 1 : 0));
  model += Bytes(3, Number(4, is_bpe ? 0 : 1));
  return model;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& model,
                                                const std::string& config = "{}") {
  return Tokenizer::Load(
      fixtures::WriteModelDir(
          {.other_files = {{"tokenizer.model", model}, {"tokenizer_config.json", config}}})
          .path());
}

TEST(SentencePiece, Bpe) {
  const auto tokenizer = Load(Model(/*is_bpe=*/true));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::pair<std::string, Ids> kCases[] = {{"ab a", {8, 6}},
                                                {"  a  b ", {3, 3, 6, 3, 3, 5, 3}},
                                                {"b<|x|>a é", {3, 5, 9, 4, 3, 205, 179}},
                                                {"", {}},
                                                {"<0x41>", {3, 70, 58, 130, 62, 59, 72}},
                                                {"ba ab", {3, 5, 4, 8}}};
  for (const auto& [text, ids] : kCases) {
    EXPECT_EQ((*tokenizer)->Encode(text, {.add_special_tokens = false}).value(), ids) << text;
    EXPECT_EQ((*tokenizer)->Decode(ids, true), text);
  }
}

TEST(SentencePiece, Unigram) {
  const auto tokenizer = Load(Model(/*is_bpe=*/false));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::pair<std::string, Ids> kCases[] = {{"ab a", {8, 6}},
                                                {"  a  b ", {6, 3, 5}},
                                                {"b<|x|>a é", {3, 5, 9, 4, 3, 0}},
                                                {"<0x41>", {3, 0}},
                                                {"ba ab", {3, 5, 4, 8}}};
  for (const auto& [text, ids] : kCases)
    EXPECT_EQ((*tokenizer)->Encode(text, {.add_special_tokens = false}).value(), ids) << text;
  EXPECT_EQ((*tokenizer)->Decode({6, 3, 5}, true), "a b");
  // Extra blanks are removed from decoded texts too.
  EXPECT_EQ((*tokenizer)->Decode({3, 3, 5, 3, 3, 5}, true), "b  b");
}

TEST(SentencePiece, SpecialTokensByDefaultAndAsConfigured) {
  const auto ids = [](bool is_bpe, const std::string& config) {
    return Load(Model(is_bpe), config).value()->Encode("ab", {}).value();
  };
  EXPECT_EQ(ids(true, "{}"), (Ids{1, 8}));
  EXPECT_EQ(ids(false, "{}"), (Ids{8, 2}));
  EXPECT_EQ(ids(true, R"({"add_bos_token": false, "add_eos_token": true})"), (Ids{8, 2}));
  const auto with_added = Load(Model(true),
                               R"({"added_tokens_decoder": {"300": {"content": "<|im_end|>",
                                   "special": true, "normalized": false}}})");
  ASSERT_TRUE(with_added.ok()) << with_added.status();
  EXPECT_EQ((*with_added)->Encode("ab<|im_end|>", {.parse_special_tokens = true}).value(),
            (Ids{1, 8, 300}));
}

TEST(SentencePiece, BrokenFilesAreNamed) {
  const std::string model = Model(true);
  const std::pair<std::string, const char*> kCases[] = {
      {"", "tokenizer.model: no pieces"},
      {"{}", "tokenizer.model: not a SentencePiece model"},
      {model.substr(0, model.size() - 1), "cut off"},
      {Model(false, Piece("c", 0, 5)), "unused piece 10 is not supported"},
      {Model(false, Piece("c", 0, 9)), "piece of unknown type 9"},
      {Model(false, Piece("\xFF", 0, 1)), "piece 10 is empty or not valid UTF-8"},
      {Model(false) + Bytes(2, Number(3, 3)), "only BPE and Unigram"},
      {Model(false) + Bytes(3, Bytes(2, "abcdef")), "not a table of SentencePiece's normalizer"}};
  for (const auto& [bytes, message] : kCases) {
    const absl::Status status = Load(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace pagoda::engine
