#include "engine/engine.h"

#include <gtest/gtest.h>

#include "tests/fakes/engine_harness.h"

namespace pagoda::engine {
namespace {

std::vector<TokenId> Prompt(int32_t size, TokenId first = 1) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < size; ++i) prompt.push_back((first + i) % 100);
  return prompt;
}

TEST(EngineTest, ServesOneRequest) {
  EngineHarness h(EngineHarness::DefaultOptions());
  const Request request = h.NewRequest(Prompt(10), 5);
  ASSERT_TRUE(h.Submit(request).ok());
  ASSERT_TRUE(h.RunToEnd().ok()) << h.pipe.violation() << h.sink.violation;
  const CollectedSequence& sequence = h.Sequence(request.key);
  EXPECT_EQ(sequence.tokens, h.ExpectedTokens(request, 0, 5));
  ASSERT_TRUE(sequence.finished.has_value());
  EXPECT_EQ(sequence.finished->reason, FinishReason::kLength);
  EXPECT_EQ(sequence.finished->num_completion_tokens, 5);
  EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
}

TEST(EngineTest, ServesManyAtOnce) {
  EngineHarness h(EngineHarness::DefaultOptions());
  std::vector<Request> requests;
  for (int i = 0; i < 30; ++i) {
    requests.push_back(h.NewRequest(Prompt(3 + i, i), 10));
    requests.back().n = 1 + i % 3;
    requests.back().best_of = requests.back().n;
    ASSERT_TRUE(h.Submit(requests.back()).ok());
  }
  ASSERT_TRUE(h.RunToEnd().ok()) << h.pipe.violation() << h.sink.violation;
  for (const Request& request : requests) {
    for (int i = 0; i < request.n; ++i) {
      EXPECT_EQ(h.Sequence(request.key, i).tokens, h.ExpectedTokens(request, i, 10));
    }
  }
  EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
}

}  // namespace
}  // namespace pagoda::engine
