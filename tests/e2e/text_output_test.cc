// What a daemon makes of tokens that are no whole text: models made by code say exactly the tokens
// that a case needs, unary and as a stream.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/text/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/chain_model.h"

namespace pagoda::e2e::text_output_test {
namespace {

using engine::TokenId;
using fixtures::Chain;
using fixtures::ChainModel;
using fixtures::ChainModelOptions;
using fixtures::IdsOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A daemon whose model says a chain of tokens after 'a'.
struct Served {
  explicit Served(const fixtures::ModelFiles& files) : dir(fixtures::WriteModelDir(files)) {
    auto started =
        TestDaemon::Start({.model_dir = dir.path(), .flags = {"--kv-cache-memory=8MiB"}});
    EXPECT_TRUE(started.ok()) << started.status();
    if (!started.ok()) std::abort();
    daemon = *std::move(started);
  }
  explicit Served(const ChainModelOptions& options) : Served(ChainModel(options)) {}

  fixtures::TemporaryDir dir;
  std::unique_ptr<TestDaemon> daemon;
};

// The texts of a stream's deltas.
std::vector<std::string> StreamedPieces(TestDaemon& daemon, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  const auto reader = daemon.stub().StreamGenerate(&context, AsStream(request));
  std::vector<std::string> pieces;
  v1::StreamGenerateResponse message;
  while (reader->Read(&message)) {
    if (message.has_delta()) pieces.push_back(message.delta().text());
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return pieces;
}

// The same request unary and as a stream, whose pieces must be valid and add up.
std::string TextBothWays(TestDaemon& daemon, const v1::GenerateRequest& request) {
  const CallResult unary = Generate(daemon.stub(), request);
  EXPECT_TRUE(unary.status.ok()) << unary.status.error_message();
  std::string streamed;
  for (const std::string& piece : StreamedPieces(daemon, request)) {
    EXPECT_TRUE(engine::IsValidUtf8(piece));
    streamed += piece;
  }
  EXPECT_EQ(streamed, unary.first().text);
  return unary.first().text;
}

TEST(TextOutput, B001SplitCharactersComeWhole) {
  // U+1F60D as two tokens, then U+1FAE0 as three.
  const TokenId kFour = 264, kTwo = 263;
  const Served served(ChainModelOptions{.next = Chain({'a', kFour, 0x8D, kTwo, 0xAB, 0xA0, '!'})});
  TestDaemon& daemon = *served.daemon;
  EXPECT_EQ(TextBothWays(daemon, TextRequest("a", 6)), "\U0001F60D\U0001FAE0!");
  for (const std::string& piece : StreamedPieces(daemon, TextRequest("a", 6))) {
    EXPECT_THAT(piece, Not(HasSubstr("\uFFFD")));
  }
  // What never completes is one U+FFFD, at the end.
  EXPECT_EQ(TextBothWays(daemon, TextRequest("a", 1)), "\uFFFD");
  EXPECT_EQ(TextBothWays(daemon, TextRequest("a", 3)), "\U0001F60D\uFFFD");
  EXPECT_EQ(TextBothWays(daemon, TextRequest("a", 4)), "\U0001F60D\uFFFD");
}

TEST(TextOutput, B003StopStringsOfSeveralTokensAreHeldBack) {
  ChainModelOptions options = {.tokenizer = {.extra_tokens = {"kla", "uto", "rn", "klauX"}}};
  const TokenId kla = IdsOf({}).extra;
  options.next = Chain({'a', 'b', kla, kla + 1, kla + 2, 'c'});
  const Served served(options);
  v1::GenerateRequest request = TextRequest("a", 20);
  request.mutable_stopping()->add_stop("klautorn");
  EXPECT_EQ(TextBothWays(*served.daemon, request), "b");
  EXPECT_THAT(StreamedPieces(*served.daemon, request), Not(::testing::Contains(HasSubstr("kla"))));
  const CallResult result = Generate(served.daemon->stub(), request);
  EXPECT_EQ(result.first().finished.reason(), v1::FINISH_REASON_STOP_SEQUENCE);
  EXPECT_EQ(result.first().finished.stop_string(), "klautorn");
  EXPECT_EQ(result.first().finished.usage().completion_tokens(), 4u);
  // A beginning that does not go on is given out in the end.
  request.mutable_stopping()->set_stop(0, "klautornX");
  EXPECT_EQ(TextBothWays(*served.daemon, request), "bklautornc");
  request.mutable_stopping()->set_stop(0, "klautorn");
  request.mutable_stopping()->set_include_stop(true);
  EXPECT_EQ(TextBothWays(*served.daemon, request), "bklautorn");
}

TEST(TextOutput, B015StrayBytesAreReplacedAndReportedRaw) {
  ChainModelOptions options = {
      .tokenizer = {.extra_tokens = {"\xC0\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80", "ok"}}};
  const TokenId extra = IdsOf({}).extra;
  options.next = Chain({'a', 0x80, extra, extra + 1, extra + 2, extra + 3});
  const Served served(options);
  std::string expected;
  for (int i = 0; i < 1 + 2 + 3 + 4; ++i) expected += "\uFFFD";
  v1::GenerateRequest request = TextRequest("a", 20);
  request.mutable_stopping()->add_stop("never");
  request.mutable_output()->set_logprobs(1);
  EXPECT_EQ(TextBothWays(*served.daemon, request), expected + "ok");
  const CallResult result = Generate(served.daemon->stub(), request);
  ASSERT_GE(result.first().logprobs.size(), 5u);
  EXPECT_EQ(result.first().logprobs[0].token().token_bytes(), "\x80");
  EXPECT_EQ(result.first().logprobs[3].token().token_bytes(), "\xF5\x80\x80\x80");
}

TEST(TextOutput, B061EveryEndOfTextTokenEnds) {
  const auto ids = IdsOf({});
  ChainModelOptions options = {.next = Chain({'a', 'b', ids.eos}),
                               .eos_token_ids = {ids.eos, ids.pad}};
  for (const auto& [letter, end] : Chain({'c', ids.pad})) options.next[letter] = end;
  for (const auto& [letter, end] : Chain({'d', ids.im_end})) options.next[letter] = end;
  fixtures::ModelFiles files = ChainModel(options);
  files.tokenizer_config["eos_token"] = "<|im_end|>";
  const Served served(files);
  const auto expect_end = [&](const std::string& prompt, const std::string& text) {
    const v1::GenerateRequest request = TextRequest(prompt, 20);
    EXPECT_EQ(TextBothWays(*served.daemon, request), text);
    const CallResult result = Generate(served.daemon->stub(), request);
    EXPECT_EQ(result.first().finished.reason(), v1::FINISH_REASON_STOP) << prompt;
  };
  expect_end("a", "b");
  expect_end("c", "");
  expect_end("d", "");

  // Without generation_config.json config.json's id ends; a single number is a list of one.
  files.generation_config = nullptr;
  const Served plain(files);
  EXPECT_EQ(Generate(plain.daemon->stub(), TextRequest("a", 20)).first().text, "b");
  files.generation_config = {{"eos_token_id", ids.pad}};
  const Served number(files);
  EXPECT_EQ(Generate(number.daemon->stub(), TextRequest("c", 20)).first().finished.reason(),
            v1::FINISH_REASON_STOP);
}

TEST(TextOutput, B021LogprobsAreOfTheLogitsAskedFor) {
  ChainModelOptions options;
  options.logits = {{'a', {{'p', 1.0f}, {'q', 0.0f}, {'r', -1.0f}, {'s', -2.0f}}}};
  const Served served(options);
  v1::GenerateRequest request = TextRequest("a", 1);
  request.mutable_sampling()->set_temperature(0.5f);
  request.mutable_sampling()->set_top_p(0.9f);
  request.mutable_sampling()->set_presence_penalty(1.0f);
  request.mutable_sampling()->set_seed(3);
  request.mutable_output()->set_logprobs(4);
  const CallResult result = Generate(served.daemon->stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_EQ(result.first().logprobs.size(), 1u);
  const double normalizer = std::log(std::exp(1.0) + 1.0 + std::exp(-1.0) + std::exp(-2.0));
  const auto& top = result.first().logprobs[0].top();
  ASSERT_EQ(top.size(), 4);
  const double kLogits[] = {1, 0, -1, -2};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(top.Get(i).token_id(), static_cast<uint32_t>('p' + i));
    EXPECT_NEAR(top.Get(i).logprob(), kLogits[i] - normalizer, 1e-4);
  }
}

}  // namespace
}  // namespace pagoda::e2e::text_output_test
