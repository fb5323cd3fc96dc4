// Seeds, greedy decoding, sentinels and combinations of options as a client meets them.

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/chain_model.h"
#include "tests/fixtures/context_model.h"

namespace pagoda::e2e::sampling_cases_test {
namespace {

std::unique_ptr<TestDaemon> StartOrDie(const std::string& model_dir,
                                       std::vector<std::string> flags) {
  flags.push_back("--kv-cache-memory=32MiB");
  auto daemon = TestDaemon::Start({.model_dir = model_dir, .flags = std::move(flags)});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  if (!daemon.ok()) std::abort();
  return *std::move(daemon);
}

// The fewest tokens a block that the device has.
std::string SmallBlocks() { return IsExactDevice() ? "--block-size=4" : "--block-size=16"; }

std::vector<uint32_t> Prompt(int length, int salt) {
  std::vector<uint32_t> prompt;
  for (int i = 0; i < length; ++i)
    prompt.push_back(static_cast<uint32_t>((salt * 31 + i * 17) % 256));
  return prompt;
}

CallResult Expect(TestDaemon& daemon, const v1::GenerateRequest& request) {
  CallResult result = Generate(daemon.stub(), request);
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  if (!result.status.ok()) std::abort();
  return result;
}

v1::GenerateRequest Probe() {
  v1::GenerateRequest request = IdsRequest(Prompt(23, 5), 24);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_logprobs(2);
  return request;
}

TEST(SamplingCases, B018ASeedGivesTheSameTextEveryTime) {
  const auto model = fixtures::WriteModelDir(fixtures::ContextModel({}));
  v1::GenerateRequest request = Probe();
  request.mutable_sampling()->set_temperature(0.8f);
  request.mutable_sampling()->set_seed(123);
  auto daemon = StartOrDie(model.path(), {});
  const CallResult first = Expect(*daemon, request);
  for (int i = 1; i < 20; ++i) {
    EXPECT_TRUE(Expect(*daemon, request).first().SameOutput(first.first())) << i;
  }
  request.mutable_sampling()->set_seed(124);
  EXPECT_NE(Expect(*daemon, request).first().token_ids, first.first().token_ids);
  request.mutable_sampling()->set_seed(123);
  daemon = StartOrDie(model.path(), {});
  EXPECT_TRUE(Expect(*daemon, request).first().SameOutput(first.first()));
}

TEST(SamplingCases, B020OthersInTheBatchChangeNoBit) {
  const auto model = fixtures::WriteModelDir(fixtures::ContextModel({}));
  const auto daemon = StartOrDie(model.path(), {"--max-num-seqs=256", SmallBlocks()});
  const CallResult alone = Expect(*daemon, Probe());
  for (int num_others : {1, 7, 44, 200}) {
    const int num_repeats = num_others < 200 ? 5 : 2;
    std::vector<std::unique_ptr<OpenStream>> others;
    for (int i = 0; i < num_others; ++i) {
      v1::GenerateRequest other = IdsRequest(Prompt(1 + i * 7 % 60, i), 150);
      other.mutable_stopping()->set_ignore_eos(true);
      if (i % 2 == 1) other.mutable_sampling()->set_temperature(1.0f);
      others.push_back(std::make_unique<OpenStream>(daemon->stub(), other));
    }
    for (auto& other : others) ASSERT_TRUE(other->ReadFirstToken());
    for (int repeat = 0; repeat < num_repeats; ++repeat) {
      EXPECT_TRUE(Expect(*daemon, Probe()).first().SameOutput(alone.first())) << num_others;
    }
    for (auto& other : others) other->Cancel();
  }
}

bool SameLogprobs(const std::vector<v1::TokenLogprobs>& a,
                  const std::vector<v1::TokenLogprobs>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].SerializeAsString() != b[i].SerializeAsString()) return false;
  }
  return true;
}

TEST(SamplingCases, B023PromptLogprobsOfACachedPrefix) {
  const auto model = fixtures::WriteModelDir(fixtures::ContextModel({}));
  v1::GenerateRequest request = IdsRequest(Prompt(11, 2), 2);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_prompt_logprobs(1);
  const auto plain = StartOrDie(model.path(), {SmallBlocks(), "--enable-prefix-caching=false"});
  const CallResult expected = Expect(*plain, request);
  ASSERT_EQ(expected.prompt_logprobs.size(), 11u);
  EXPECT_FALSE(expected.prompt_logprobs[0].token().has_logprob());
  for (size_t i = 1; i < 11; ++i) {
    EXPECT_TRUE(expected.prompt_logprobs[i].token().has_logprob()) << i;
  }
  const auto daemon = StartOrDie(model.path(), {SmallBlocks()});
  const auto chunked = StartOrDie(model.path(), {SmallBlocks(), "--max-num-batched-tokens=3"});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(SameLogprobs(Expect(*daemon, request).prompt_logprobs, expected.prompt_logprobs));
    EXPECT_TRUE(SameLogprobs(Expect(*chunked, request).prompt_logprobs, expected.prompt_logprobs));
  }
}

// After 'a': p and q tie, r is behind.
fixtures::ChainModelOptions Tie() {
  fixtures::ChainModelOptions options;
  options.logits = {{'a', {{'p', 1.0f}, {'q', 1.0f}, {'r', 0.5f}}}};
  return options;
}

TEST(SamplingCases, B027GreedyWhateverElseIsSet) {
  const auto model = fixtures::WriteModelDir(fixtures::ChainModel(Tie()));
  const auto daemon = StartOrDie(model.path(), {});
  v1::GenerateRequest request = TextRequest("a", 1);
  request.mutable_output()->set_logprobs(3);
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_temperature(0);
  sampling.set_top_p(0.1f);
  sampling.set_top_k(50);
  sampling.set_min_p(0.5f);
  sampling.set_seed(1);
  EXPECT_EQ(Expect(*daemon, request).first().text, "p");
  // So little that all but the best vanish; of equals either may come, and none is NaN.
  for (const float temperature : {1e-6f, 1e-30f, 1e-45f}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      sampling.Clear();
      sampling.set_temperature(temperature);
      sampling.set_seed(seed);
      const CallResult result = Expect(*daemon, request);
      EXPECT_THAT(result.first().text, ::testing::AnyOf("p", "q")) << temperature;
      for (const v1::Logprob& top : result.first().logprobs[0].top()) {
        EXPECT_EQ(top.logprob(), top.logprob());
      }
    }
  }
}

TEST(SamplingCases, B028TopKSentinels) {
  const auto model = fixtures::WriteModelDir(fixtures::ChainModel(Tie()));
  const auto daemon = StartOrDie(model.path(), {});
  v1::GetModelRequest ask;
  v1::GetModelResponse about;
  grpc::ClientContext context;
  ASSERT_TRUE(daemon->stub().GetModel(&context, ask, &about).ok());
  const auto vocab = static_cast<int32_t>(about.vocab_size());
  const auto letters = [&](const std::function<void(v1::SamplingParams&)>& set) {
    v1::GenerateRequest request = TextRequest("a", 1);
    request.mutable_output()->set_n(100);
    request.mutable_sampling()->Clear();
    request.mutable_sampling()->set_temperature(1.0f);
    request.mutable_sampling()->set_seed(9);
    set(*request.mutable_sampling());
    std::string all;
    for (const auto& [index, sequence] : Expect(*daemon, request).sequences) all += sequence.text;
    return all;
  };
  const std::string off = letters([](v1::SamplingParams&) {});
  EXPECT_THAT(off,
              ::testing::AllOf(
                  ::testing::HasSubstr("p"), ::testing::HasSubstr("q"), ::testing::HasSubstr("r")));
  for (const int32_t top_k : {0, -1, vocab, vocab + 1}) {
    EXPECT_EQ(letters([&](v1::SamplingParams& s) { s.set_top_k(top_k); }), off) << top_k;
  }
  EXPECT_EQ(letters([](v1::SamplingParams& s) { s.set_top_k(1); }), std::string(100, 'p'));
  v1::GenerateRequest request = TextRequest("a", 1);
  request.mutable_sampling()->set_top_k(-2);
  const CallResult refused = Generate(daemon->stub(), request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FirstViolation(refused.status), "sampling.top_k");
}

// A request whose every field is set by a draw, in or out of its range.
v1::GenerateRequest AnyRequest(std::mt19937& random) {
  const auto one_in = [&](int n) { return random() % static_cast<uint32_t>(n) == 0; };
  const auto of = [&](auto first, auto... rest) {
    const decltype(first) all[] = {first, static_cast<decltype(first)>(rest)...};
    return all[random() % (1 + sizeof...(rest))];
  };
  v1::GenerateRequest request =
      one_in(2) ? TextRequest(of("a", "abcabcabcabc", "hello world"), of(0u, 1u, 5u, 12u))
                : IdsRequest(Prompt(of(1, 8, 33), of(1, 2)), of(0u, 1u, 5u, 12u));
  v1::SamplingParams& s = *request.mutable_sampling();
  s.set_seed(of(1u, 7u));
  if (one_in(2)) s.set_temperature(of(0.0f, 0.7f, 1.5f));
  if (one_in(3)) s.set_top_p(of(0.1f, 0.9f, 1.0f));
  if (one_in(3)) s.set_top_k(of(-1, 0, 1, 40));
  if (one_in(4)) s.set_min_p(of(0.0f, 0.1f));
  if (one_in(4)) s.set_typical_p(of(0.5f, 1.0f));
  if (one_in(4)) s.set_repetition_penalty(of(0.9f, 1.3f));
  if (one_in(4)) s.set_frequency_penalty(of(-0.5f, 0.7f));
  if (one_in(4)) s.set_presence_penalty(of(-0.5f, 0.7f));
  if (one_in(5)) (*s.mutable_logit_bias())[of(3u, 97u)] = of(-100.0f, 5.0f);
  if (one_in(6)) s.add_bad_words(of("a", "hello"));
  if (one_in(6)) {
    for (uint32_t id : {97u, 98u, 99u}) s.add_allowed_token_ids(id);
  }
  if (one_in(4)) s.mutable_ngram_speculation()->set_max_draft_tokens(of(0u, 1u, 16u));
  if (one_in(8)) s.mutable_beam_search()->set_width(of(1u, 3u, 4u));
  if (one_in(3)) request.mutable_stopping()->set_ignore_eos(true);
  if (one_in(4)) request.mutable_stopping()->set_min_tokens(of(0u, 3u, 20u));
  if (one_in(4)) request.mutable_stopping()->add_stop(of("b", "lo w"));
  if (one_in(4)) request.mutable_stopping()->add_stop_token_ids(of(98u, 250u));
  if (one_in(4)) request.mutable_output()->set_n(of(1u, 2u, 3u));
  if (one_in(6)) request.mutable_output()->set_best_of(of(1u, 3u, 4u));
  if (one_in(3)) request.mutable_output()->set_logprobs(of(0, 2));
  if (one_in(3)) request.mutable_output()->set_prompt_logprobs(of(0, 1));
  if (one_in(4)) request.mutable_output()->set_echo(true);
  if (one_in(6)) request.mutable_output()->set_skip_special_tokens(false);
  if (one_in(5)) request.mutable_prompt()->set_truncate_prompt_tokens(of(1u, 6u, 100u));
  return request;
}

TEST(SamplingCases, B034AnyCombinationOfOptionsTwiceAndBothWays) {
  const auto model = fixtures::WriteModelDir(fixtures::ContextModel({}));
  std::mt19937 random(34);
  for (const char* budget : {"5", "2048"}) {
    const auto daemon = StartOrDie(
        model.path(), {SmallBlocks(), absl::StrCat("--max-num-batched-tokens=", budget)});
    int num_served = 0;
    for (int i = 0; i < 150; ++i) {
      const v1::GenerateRequest request = AnyRequest(random);
      SCOPED_TRACE(request.ShortDebugString());
      const CallResult cold = Generate(daemon->stub(), request);
      const CallResult warm = Generate(daemon->stub(), request);
      // Which draws are the best is known at their end: those of best_of are not streamed.
      const bool is_ranked = request.output().best_of() > std::max(1u, request.output().n());
      const CallResult stream = is_ranked ? cold : StreamGenerate(daemon->stub(), request);
      ASSERT_EQ(warm.status.error_code(), cold.status.error_code());
      ASSERT_EQ(stream.status.error_code(), cold.status.error_code());
      if (!cold.status.ok()) {
        ASSERT_EQ(cold.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
            << cold.status.error_message();
        EXPECT_NE(FirstViolation(cold.status), "");
        continue;
      }
      ++num_served;
      ASSERT_EQ(warm.sequences.size(), cold.sequences.size());
      ASSERT_EQ(stream.sequences.size(), cold.sequences.size());
      for (const auto& [index, sequence] : cold.sequences) {
        EXPECT_TRUE(warm.sequences.at(index).SameOutput(sequence));
        EXPECT_TRUE(stream.sequences.at(index).SameOutput(sequence));
      }
      EXPECT_TRUE(SameLogprobs(warm.prompt_logprobs, cold.prompt_logprobs));
      EXPECT_TRUE(SameLogprobs(stream.prompt_logprobs, cold.prompt_logprobs));
    }
    EXPECT_GT(num_served, 60);
  }
}

}  // namespace
}  // namespace pagoda::e2e::sampling_cases_test
