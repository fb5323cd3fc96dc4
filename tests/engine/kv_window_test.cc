// Sequences whose layers all have a window: blocks behind it go back while they run. The fake
// worker checks every position that a row reads, and that no block is given away while a row may
// read it.
#include <algorithm>

#include <gtest/gtest.h>

#include "tests/fakes/engine_harness.h"

namespace pagoda::engine {
namespace {

// Blocks of 4, window of 10, budget 8, two steps in flight: (10 + 2 * 8) / 4 + 1 blocks at most.
EngineHarness::Options WindowOptions(int32_t num_kv_blocks) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.kv_window = 10;
  options.max_model_len = 1000;
  options.num_kv_blocks = num_kv_blocks;
  return options;
}
constexpr int64_t kMaxHeldBlocks = 8;

void ExpectTokens(EngineHarness& h, const Request& request, int32_t index, int32_t num_tokens) {
  const CollectedSequence& sequence = h.Sequence(request.key, index);
  ASSERT_TRUE(sequence.finished.has_value());
  EXPECT_TRUE(sequence.finished->status.ok()) << sequence.finished->status;
  EXPECT_EQ(sequence.tokens, h.ExpectedTokens(request, index, num_tokens));
}

TEST(KvWindowTest, OneSequenceHoldsNoMoreThanItsWindow) {
  EngineHarness h(WindowOptions(64));
  const Request request = h.NewRequest(Prompt(150), 200);
  ASSERT_TRUE(h.Submit(request).ok());
  int64_t most_used = 0;
  int64_t most_used_decoding = 0;
  const absl::Status status = h.RunToEnd([&](int) {
    const int64_t num_used = h.metrics.kv_blocks_used.value();
    most_used = std::max(most_used, num_used);
    if (!h.Sequence(request.key).tokens.empty()) {
      most_used_decoding = std::max(most_used_decoding, num_used);
    }
    EXPECT_EQ(num_used + h.metrics.kv_blocks_cached.value() + h.metrics.kv_blocks_free.value(), 64);
  });
  ASSERT_TRUE(status.ok()) << status;
  ExpectTokens(h, request, 0, 200);
  EXPECT_LE(most_used, kMaxHeldBlocks);
  // Two rows in flight see 11 tokens.
  EXPECT_LE(most_used_decoding, kMaxHeldBlocks);
  EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
}

TEST(KvWindowTest, PromptAndOutputMayBeLongerThanThePool) {
  // The window alone: 10 tokens may touch four blocks.
  for (const int32_t num_blocks : {4, 5, 6, 8}) {
    EngineHarness h(WindowOptions(num_blocks));
    const Request request = h.NewRequest(Prompt(301), 120);
    ASSERT_TRUE(h.Submit(request).ok());
    const absl::Status status = h.RunToEnd();
    ASSERT_TRUE(status.ok()) << status;
    ExpectTokens(h, request, 0, 120);
    EXPECT_EQ(h.metrics.preemptions.value(), 0u);
  }
  EngineHarness h(WindowOptions(3));
  EXPECT_TRUE(absl::IsInvalidArgument(h.Submit(h.NewRequest(Prompt(13), 1))));
  EXPECT_TRUE(h.Submit(h.NewRequest(Prompt(12), 1)).ok());
  EXPECT_TRUE(h.RunToEnd().ok());
}

TEST(KvWindowTest, ManySequencesShareASmallPool) {
  EngineHarness h(WindowOptions(12));
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    // Most begin with one block and grow to the window's.
    requests.push_back(h.NewRequest(Prompt(i % 4 == 3 ? 120 : 3, i), 60));
    ASSERT_TRUE(h.Submit(requests.back()).ok());
  }
  const absl::Status status = h.RunToEnd();
  ASSERT_TRUE(status.ok()) << status;
  for (const Request& request : requests) ExpectTokens(h, request, 0, 60);
  EXPECT_GT(h.metrics.preemptions.value(), 0u);
  EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
}

// Only what a row after the prefix reads must be there: the blocks before have been taken by
// others.
TEST(KvWindowTest, PrefixIsFoundThoughItsBeginningIsEvicted) {
  EngineHarness h(WindowOptions(12));
  Request first = h.NewRequest(Prompt(81), 1);
  Request again = h.NewRequest(Prompt(81), 1);
  again.sampling.seed = first.sampling.seed;
  ASSERT_TRUE(h.Submit(first).ok());
  bool is_submitted = false;
  const absl::Status status = h.RunToEnd([&](int) {
    if (is_submitted || h.engine->num_live_requests() > 0) return;
    is_submitted = true;
    ASSERT_TRUE(h.Submit(again).ok());
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_GT(h.metrics.kv_evictions.value(), 0u);
  EXPECT_EQ(h.sink.requests[again.key.value()].started->num_cached_tokens, 80);
  EXPECT_EQ(h.Sequence(first.key).tokens, h.Sequence(again.key).tokens);
}

TEST(KvWindowTest, SiblingsShareTheWindowOfThePrompt) {
  for (const bool prefix_caching : {false, true}) {
    EngineHarness::Options options = WindowOptions(64);
    options.config.set_prefix_caching(prefix_caching);
    EngineHarness h(options);
    Request request = h.NewRequest(Prompt(122), 40);
    request.n = request.best_of = 4;
    ASSERT_TRUE(h.Submit(request).ok());
    const absl::Status status = h.RunToEnd();
    ASSERT_TRUE(status.ok()) << status;
    for (int32_t i = 0; i < 4; ++i) ExpectTokens(h, request, i, 40);
    // The prompt once, its last two tokens for each sibling, and the output.
    EXPECT_LE(h.pipe.num_tokens_computed(), 122u + 3 * 2 + 4 * 40);
  }
}

TEST(KvWindowTest, PromptLogprobsOfALongPrompt) {
  EngineHarness h(WindowOptions(8));
  Request request = h.NewRequest(Prompt(100), 3);
  request.sampling.num_prompt_logprobs = 1;
  ASSERT_TRUE(h.Submit(request).ok());
  ASSERT_TRUE(h.RunToEnd().ok());
  const std::vector<uint32_t> prompt(request.prompt.begin(), request.prompt.end());
  const auto& logprobs = h.Sequence(request.key).prompt_logprobs;
  ASSERT_EQ(logprobs.size(), 100u);
  for (size_t p = 1; p < 100; ++p) {
    EXPECT_EQ(logprobs[p].token.logprob, FakeStepPipe::Logprob(prompt, p, prompt[p]));
  }
}

// A sequence whose values are not to be trusted leaves nothing that can be found, also behind its
// window.
TEST(KvWindowTest, B032_NothingOfAPoisonedSequenceIsFoundBehindItsWindow) {
  EngineHarness h(WindowOptions(64));
  std::vector<TokenId> prompt = Prompt(80);
  prompt[70] = 99;
  h.pipe.poisonous_tokens = {99};
  for (TokenId& token : prompt) token = token == 99 && &token != &prompt[70] ? 98 : token;
  const Request bad = h.NewRequest(prompt, 4);
  ASSERT_TRUE(h.Submit(bad).ok());
  ASSERT_TRUE(h.RunToEnd().ok());
  EXPECT_EQ(h.Sequence(bad.key).finished->reason, FinishReason::kError);
  EXPECT_EQ(h.metrics.kv_blocks_cached.value(), 0);
  EXPECT_EQ(h.metrics.kv_blocks_free.value(), 64);
}

}  // namespace
}  // namespace pagoda::engine
