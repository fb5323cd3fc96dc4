// What a daemon generates: the shipped model's reference values, unary and stream alike, and the
// same tokens however busy it is.

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/context_model.h"

namespace pagoda::e2e::generation_test {
namespace {

using nlohmann::json;

std::unique_ptr<TestDaemon> StartOrDie(TestDaemonOptions options) {
  auto daemon = TestDaemon::Start(std::move(options));
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  if (!daemon.ok()) std::abort();
  return *std::move(daemon);
}

// ---- The shipped model

struct GoldenSetting {
  const char* dtype;
  // Below this margin between the two best logits, rounding decides.
  double margin_floor;
};

class FableGolden : public ::testing::TestWithParam<GoldenSetting> {};

TEST_P(FableGolden, GreedyTextOfEveryCase) {
  const json golden = json::parse(std::ifstream(DefaultModelDir() + "/golden.json"));
  const auto daemon = StartOrDie({.flags = {absl::StrCat("--dtype=", GetParam().dtype)}});
  for (const json& c : golden["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const std::vector<uint32_t> ids = c["ids"], greedy = c["greedy_ids"];
    // The text becomes the reference's ids.
    v1::TokenizeRequest tokenize;
    tokenize.set_text(c["text"].get<std::string>());
    tokenize.set_parse_special_tokens(true);
    v1::TokenizeResponse tokens;
    grpc::ClientContext context;
    ASSERT_TRUE(daemon->stub().Tokenize(&context, tokenize, &tokens).ok());
    EXPECT_THAT(tokens.token_ids(), ::testing::ElementsAreArray(ids));

    v1::GenerateRequest request = IdsRequest(ids, static_cast<uint32_t>(greedy.size()));
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_output()->set_skip_special_tokens(false);
    const CallResult unary = Generate(daemon->stub(), request);
    ASSERT_TRUE(unary.status.ok()) << unary.status.error_message();
    ASSERT_EQ(unary.first().token_ids.size(), greedy.size());
    bool same_path = true;
    for (size_t i = 0; i < greedy.size() && same_path; ++i) {
      same_path = unary.first().token_ids[i] == greedy[i];
      if (!same_path)
        EXPECT_LT(c["greedy_margins"][i].get<double>(), GetParam().margin_floor) << "token " << i;
    }
    if (same_path) EXPECT_EQ(unary.first().text, c["greedy_text"].get<std::string>());

    const CallResult stream = StreamGenerate(daemon->stub(), request);
    ASSERT_TRUE(stream.status.ok());
    EXPECT_TRUE(stream.first().SameOutput(unary.first()));
    EXPECT_GT(stream.num_messages, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes,
                         FableGolden,
                         ::testing::Values(GoldenSetting{"float32", 1e-3},
                                           GoldenSetting{"bfloat16", 0.3}),
                         [](const auto& info) { return std::string(info.param.dtype); });

TEST(Fable, TextPromptStreamsReadableText) {
  const auto daemon = StartOrDie({});
  v1::GenerateRequest request = TextRequest("Once upon a time", 32);
  request.mutable_sampling()->Clear();  // the model's own defaults
  request.mutable_sampling()->set_seed(7);
  request.mutable_output()->set_echo(true);
  const CallResult result = StreamGenerate(daemon->stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_THAT(result.first().text, ::testing::StartsWith("Once upon a time"));
  EXPECT_FLOAT_EQ(result.started.sampling().temperature(), 0.8f);
  EXPECT_FLOAT_EQ(result.started.sampling().top_p(), 0.95f);
  EXPECT_EQ(result.started.sampling().seed(), 7u);
  EXPECT_EQ(result.started.model(), "fable-7m");
  EXPECT_EQ(result.first().finished.usage().completion_tokens(), result.first().token_ids.size());
}

// ---- The same tokens alone and among others

// 64 requests of every kind; request i is the same each time.
v1::GenerateRequest MixedRequest(int i) {
  std::vector<uint32_t> prompt;
  for (int p = 0; p < 1 + (i * 7) % 90; ++p)
    prompt.push_back(static_cast<uint32_t>((i * 31 + p * 17) % 256));
  v1::GenerateRequest request = IdsRequest(prompt, 8 + static_cast<uint32_t>(i % 25));
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_logprobs(i % 3);
  v1::SamplingParams* sampling = request.mutable_sampling();
  if (i % 2 == 0) return request;  // greedy
  sampling->set_temperature(0.7f + 0.01f * static_cast<float>(i));
  sampling->set_seed(static_cast<uint64_t>(1000 + i));
  if (i % 3 == 0) sampling->set_top_p(0.9f);
  if (i % 5 == 0) sampling->set_top_k(20);
  if (i % 7 == 0) sampling->set_min_p(0.02f);
  if (i % 11 == 0) sampling->set_repetition_penalty(1.2f);
  if (i % 13 == 0) sampling->set_presence_penalty(0.5f);
  if (i % 4 == 1) request.mutable_output()->set_n(2);
  return request;
}

std::vector<CallResult> CallAllAtOnce(const TestDaemon& daemon, int count) {
  std::vector<CallResult> results(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      const auto stub = daemon.NewStub();
      results[static_cast<size_t>(i)] =
          i % 2 == 0 ? Generate(*stub, MixedRequest(i)) : StreamGenerate(*stub, MixedRequest(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

void ExpectSame(const std::vector<CallResult>& actual, const std::vector<CallResult>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i));
    ASSERT_TRUE(actual[i].status.ok()) << actual[i].status.error_message();
    ASSERT_EQ(actual[i].sequences.size(), expected[i].sequences.size());
    for (const auto& [index, sequence] : expected[i].sequences) {
      EXPECT_TRUE(actual[i].sequences.at(index).SameOutput(sequence));
    }
  }
}

void CheckConcurrency(const std::string& model_dir, std::vector<std::string> flags) {
  constexpr int kNumRequests = 64;
  std::vector<CallResult> alone;
  {
    const auto daemon = StartOrDie({.model_dir = model_dir, .flags = flags});
    for (int i = 0; i < kNumRequests; ++i)
      alone.push_back(Generate(daemon->stub(), MixedRequest(i)));
  }
  flags.push_back("--max-num-seqs=64");
  const auto daemon = StartOrDie({.model_dir = model_dir, .flags = flags});
  // The second time the prefix cache holds every prompt.
  ExpectSame(CallAllAtOnce(*daemon, kNumRequests), alone);
  ExpectSame(CallAllAtOnce(*daemon, kNumRequests), alone);
}

TEST(Concurrency, SixtyFourMixedRequestsEqualThemselvesAlone) {
  const auto model = fixtures::WriteModelDir(fixtures::ContextModel({}));
  CheckConcurrency(model.path(), {});
}

TEST(ConcurrencyLong, SixtyFourMixedRequestsOfTheShippedModel) {
  for (const char* budget : {"8", "17", "512"}) {
    for (const char* block_size : {"4", "16", "64"}) {
      CheckConcurrency(DefaultModelDir(),
                       {absl::StrCat("--max-num-batched-tokens=", budget),
                        absl::StrCat("--block-size=", block_size)});
    }
  }
}

// ---- KV blocks

// Bytes of one token's keys and values of the context model: 2 layers, 2 heads of 64, float32.
constexpr int kContextTokenBytes = 2 * 2 * 2 * 64 * 4;

TEST(PrefixCache, B067PromptsAtBlockBoundariesTwice) {
  const auto model = fixtures::WriteModelDir(fixtures::ContextModel({}));
  // 13 tokens of prompt and 4 of output take 5 blocks of 4.
  const auto daemon =
      StartOrDie({.model_dir = model.path(),
                  .flags = {"--block-size=4",
                            "--max-num-seqs=1",
                            absl::StrCat("--kv-cache-memory=", 5 * 4 * kContextTokenBytes)}});
  for (int length = 1; length <= 13; ++length) {
    std::vector<uint32_t> prompt;
    for (int p = 0; p < length; ++p) prompt.push_back(static_cast<uint32_t>(length * 3 + p));
    v1::GenerateRequest request = IdsRequest(prompt, 4);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_output()->set_logprobs(0);
    const CallResult cold = Generate(daemon->stub(), request);
    const CallResult warm = Generate(daemon->stub(), request);
    ASSERT_TRUE(cold.status.ok()) << cold.status.error_message();
    ASSERT_TRUE(warm.status.ok()) << warm.status.error_message();
    EXPECT_TRUE(warm.first().SameOutput(cold.first())) << length;
    EXPECT_EQ(warm.started.cached_tokens(), static_cast<uint32_t>((length - 1) / 4 * 4));
    EXPECT_LE(warm.started.cached_tokens(), static_cast<uint32_t>(length - 1));
  }
}

TEST(Preemption, B070StreamsEqualTheUnpressedRun) {
  const auto model = fixtures::WriteModelDir(fixtures::ContextModel({}));
  constexpr int kNumStreams = 6;
  const auto request_of = [](int i) {
    std::vector<uint32_t> prompt;
    for (int p = 0; p < 20; ++p) prompt.push_back(static_cast<uint32_t>((i * 40 + p * 3) % 256));
    v1::GenerateRequest request = IdsRequest(prompt, 24);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_output()->set_logprobs(0);
    return request;
  };
  const auto run = [&](int num_blocks, double* preemptions) {
    const auto daemon = StartOrDie(
        {.model_dir = model.path(),
         .flags = {"--block-size=4",
                   absl::StrCat("--kv-cache-memory=", num_blocks * 4 * kContextTokenBytes)}});
    std::vector<CallResult> results(kNumStreams);
    std::vector<std::thread> threads;
    for (int i = 0; i < kNumStreams; ++i) {
      threads.emplace_back(
          [&, i] { results[i] = StreamGenerate(*daemon->NewStub(), request_of(i)); });
    }
    for (std::thread& thread : threads) thread.join();
    *preemptions = daemon->Metric("pagoda_preemptions_total").value_or(-1);
    EXPECT_EQ(daemon->Metric("pagoda_generation_tokens_total").value_or(-1), kNumStreams * 24);
    return results;
  };
  double few = 0, none = 0;
  const std::vector<CallResult> ample = run(100, &none);
  // On a machine so busy that the streams come one by one nothing presses; then once more.
  for (int attempt = 0; attempt < 10 && few == 0; ++attempt) ExpectSame(run(12, &few), ample);
  EXPECT_GT(few, 0);
  EXPECT_EQ(none, 0);
}

}  // namespace
}  // namespace pagoda::e2e::generation_test
