// Rows of cases.md that the engine answers for, over the fake worker: it checks every plan and
// every position read.
#include <gtest/gtest.h>

#include "tests/fakes/engine_harness.h"
#include "tests/fakes/fake_tokenizer.h"

namespace pagoda::engine {
namespace {

int32_t NumCached(EngineHarness& h, const Request& request) {
  return h.sink.requests[request.key.value()].started->num_cached_tokens;
}

// Submits one after the other, each when the one before has ended.
void RunInTurn(EngineHarness& h, const std::vector<Request>& requests) {
  size_t next = 0;
  ASSERT_TRUE(h.Submit(requests[next++]).ok());
  const absl::Status status = h.RunToEnd([&](int) {
    if (h.engine->num_live_requests() > 0 || next == requests.size()) return;
    ASSERT_TRUE(h.Submit(requests[next++]).ok());
  });
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(h.metrics.kv_blocks_used.value(), 0);
}

TEST(EngineCasesTest, B041_PromptOnlyReturnsPromptLogprobsAndLength) {
  EngineHarness h(EngineHarness::DefaultOptions());
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(h.NewRequest(Prompt(11), 0));
    requests.back().sampling.num_prompt_logprobs = 1;
  }
  requests[1].n = requests[1].best_of = 2;
  requests[2].sampling.num_prompt_logprobs.reset();
  requests[3].prompt = {5};
  RunInTurn(h, requests);
  const std::vector<uint32_t> prompt(requests[0].prompt.begin(), requests[0].prompt.end());
  for (const Request& request : requests) {
    for (int32_t i = 0; i < request.n; ++i) {
      const CollectedSequence& sequence = h.Sequence(request.key, i);
      EXPECT_TRUE(sequence.tokens.empty());
      EXPECT_EQ(sequence.finished->reason, FinishReason::kLength);
      EXPECT_EQ(sequence.finished->num_completion_tokens, 0);
      EXPECT_TRUE(sequence.finished->status.ok());
    }
  }
  for (int i = 0; i < 2; ++i) {
    const auto& logprobs = h.Sequence(requests[i].key).prompt_logprobs;
    ASSERT_EQ(logprobs.size(), 11u);
    EXPECT_EQ(logprobs[0].rank, 0);
    for (size_t p = 1; p < 11; ++p) {
      EXPECT_EQ(logprobs[p].token.logprob, FakeStepPipe::Logprob(prompt, p, prompt[p]));
      EXPECT_EQ(logprobs[p].top.size(), 1u);
    }
    EXPECT_EQ(NumCached(h, requests[i]), 0);
  }
  // Without prompt log-probabilities the cached prompt needs no work but its last, partial block.
  EXPECT_EQ(NumCached(h, requests[2]), 8);
  EXPECT_EQ(h.Sequence(requests[3].key).prompt_logprobs.size(), 1u);
}

TEST(EngineCasesTest, B042_SequencesStopExactlyAtTheContext) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.max_model_len = 32;
  for (const int32_t size : {30, 31, 32}) {
    for (const int32_t max_tokens : {1, 2, 5, -1}) {
      EngineHarness h(options);
      Request request = h.NewRequest(Prompt(size), max_tokens);
      if (max_tokens < 0) request.stop.max_tokens.reset();
      RunInTurn(h, {request});
      const int32_t room = 32 - size;
      EXPECT_EQ(h.Sequence(request.key).finished->num_completion_tokens,
                max_tokens < 0 ? room : std::min(room, max_tokens));
      EXPECT_EQ(h.Sequence(request.key).finished->reason, FinishReason::kLength);
    }
  }
  EngineHarness h(options);
  for (const int32_t size : {33, 1000}) {
    const absl::Status status = h.Submit(h.NewRequest(Prompt(size), 1));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find(std::to_string(size)), std::string::npos) << status;
    EXPECT_NE(status.message().find("32"), std::string::npos) << status;
  }
}

TEST(EngineCasesTest, B046_CancelAffectsOneOfTwoEqualRequests) {
  EngineHarness h(EngineHarness::DefaultOptions());
  const Request kept = h.NewRequest(Prompt(9), 20);
  const Request cancelled = h.NewRequest(Prompt(9), 20);
  ASSERT_TRUE(h.Submit(kept).ok());
  ASSERT_TRUE(h.Submit(cancelled).ok());
  ASSERT_TRUE(h.RunToEnd([&](int num_waits) {
                 if (num_waits == 6) h.engine->Cancel(cancelled.key);
               }).ok());
  EXPECT_EQ(h.Sequence(kept.key).tokens, h.ExpectedTokens(kept, 0, 20));
  EXPECT_EQ(h.Sequence(cancelled.key).finished->reason, FinishReason::kCancelled);
}

TEST(EngineCasesTest, B066_SaltsDoNotShareBlocks) {
  EngineHarness h(EngineHarness::DefaultOptions());
  std::vector<Request> requests;
  for (const char* salt : {"a", "b", "a", "", "b"}) {
    requests.push_back(h.NewRequest(Prompt(13), 4));
    requests.back().cache_salt = salt;
  }
  RunInTurn(h, requests);
  const std::vector<int32_t> cached = {0, 0, 12, 0, 12};
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(NumCached(h, requests[i]), cached[i]) << i;
    EXPECT_EQ(h.Sequence(requests[i].key).tokens, h.ExpectedTokens(requests[i], 0, 4));
  }
}

TEST(EngineCasesTest, B067_FullHitsRecomputeTheLastToken) {
  for (int32_t size = 1; size <= 13; ++size) {
    EngineHarness::Options options = EngineHarness::DefaultOptions();
    options.config.set_max_num_seqs(1);
    options.num_kv_blocks = (size + 2 + 3) / 4;  // just enough
    EngineHarness h(options);
    const std::vector<Request> requests = {h.NewRequest(Prompt(size), 3),
                                           h.NewRequest(Prompt(size), 3)};
    RunInTurn(h, requests);
    EXPECT_EQ(NumCached(h, requests[1]), (size - 1) / 4 * 4);
    for (const Request& request : requests) {
      EXPECT_EQ(h.Sequence(request.key).tokens, h.ExpectedTokens(request, 0, 3)) << size;
    }
  }
}

TEST(EngineCasesTest, B068_CachedCountsAreKnownBeforeTokensAreScheduled) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.config.set_block_size(256);
  options.config.set_max_num_batched_tokens(512);
  options.max_model_len = 1024;
  EngineHarness h(options);
  const Request first = h.NewRequest(Prompt(300), 2);
  Request second = h.NewRequest(Prompt(465), 2);
  for (size_t i = 256; i < 465; ++i) second.prompt[i] = 3;
  RunInTurn(h, {first, second});
  EXPECT_EQ(NumCached(h, second), 256);
  EXPECT_EQ(h.Sequence(second.key).tokens, h.ExpectedTokens(second, 0, 2));
  EXPECT_EQ(h.metrics.prompt_tokens_computed.value(), 300u + 465 - 256);
}

// The first of two equal requests fills, in the same step, the block that the second would hit: no
// hit then, since only blocks of applied steps are found.
TEST(EngineCasesTest, B068_ABlockBeingFilledInTheSameStepIsNoHit) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.config.set_max_num_batched_tokens(32);
  EngineHarness h(options);
  const Request first = h.NewRequest(Prompt(9), 3), second = h.NewRequest(Prompt(9), 3);
  ASSERT_TRUE(h.Submit(first).ok());
  ASSERT_TRUE(h.Submit(second).ok());
  ASSERT_TRUE(h.RunToEnd().ok());
  EXPECT_EQ(NumCached(h, second), 0);
  EXPECT_EQ(h.Sequence(second.key).tokens, h.ExpectedTokens(second, 0, 3));
}

TEST(EngineCasesTest, B070_PreemptedStreamsGiveTheSameTokensOnce) {
  for (const bool prefix_caching : {true, false}) {
    EngineHarness::Options options = EngineHarness::DefaultOptions();
    options.num_kv_blocks = 12;
    options.config.set_max_num_batched_tokens(32);
    options.config.set_prefix_caching(prefix_caching);
    EngineHarness h(options);
    std::vector<Request> requests;
    for (int i = 0; i < 6; ++i) {
      requests.push_back(h.NewRequest(Prompt(20, i), 24));
      ASSERT_TRUE(h.Submit(requests.back()).ok());
    }
    // Every token comes alone, preempted or not.
    h.sink.on_delta = [](const OutputDelta& delta) { EXPECT_EQ(delta.tokens.size(), 1u); };
    ASSERT_TRUE(h.RunToEnd().ok());
    EXPECT_GT(h.metrics.preemptions.value(), 0u);
    for (const Request& request : requests) {
      EXPECT_EQ(h.Sequence(request.key).tokens, h.ExpectedTokens(request, 0, 24));
    }
    EXPECT_EQ(h.metrics.generation_tokens.value(), 6u * 24);
    EXPECT_EQ(h.metrics.prompt_tokens_computed.value() + h.metrics.prompt_tokens_cached.value(),
              6u * 20);
    EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
    EXPECT_EQ(h.metrics.requests_preempted_waiting.value(), 0);
  }
}

TEST(EngineCasesTest, B072_ACancelledRequestIsGoneWithinTwoSteps) {
  EngineHarness h(EngineHarness::DefaultOptions());
  Request request = h.NewRequest(Prompt(20), 0);
  request.stop.max_tokens.reset();
  Request neighbour = h.NewRequest(Prompt(4), 60);
  ASSERT_TRUE(h.Submit(request).ok());
  ASSERT_TRUE(h.Submit(neighbour).ok());
  uint64_t step_at_cancel = 0;
  uint64_t step_when_free = 0;
  ASSERT_TRUE(h.RunToEnd([&](int num_waits) {
                 if (num_waits == 20) {
                   h.engine->Cancel(request.key);
                   step_at_cancel = h.pipe.num_steps();
                 }
                 const bool is_free = h.metrics.cancel_to_free_seconds.sum() > 0;
                 if (is_free && step_when_free == 0) step_when_free = h.pipe.num_steps();
               }).ok());
  EXPECT_EQ(h.Sequence(request.key).finished->reason, FinishReason::kCancelled);
  EXPECT_TRUE(absl::IsCancelled(h.Sequence(request.key).finished->status));
  EXPECT_GT(step_when_free, 0u);
  EXPECT_LE(step_when_free, step_at_cancel + 2);
  EXPECT_EQ(h.Sequence(neighbour.key).tokens, h.ExpectedTokens(neighbour, 0, 60));
}

TEST(EngineCasesTest, B074_ADeadlineThatPassesInTheQueueEndsTheRequestUnprefilled) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.config.set_max_num_seqs(1);
  EngineHarness h(options);
  const Request running = h.NewRequest(Prompt(4), 100);
  Request late = h.NewRequest(Prompt(40, 50), 10);
  late.deadline_ns = h.clock.now_ns + 20'000'000;
  Request expired = h.NewRequest(Prompt(40, 50), 10);
  expired.deadline_ns = h.clock.now_ns - 1;
  for (const Request& request : {running, late, expired}) ASSERT_TRUE(h.Submit(request).ok());
  ASSERT_TRUE(h.RunToEnd().ok());
  for (const Request& request : {late, expired}) {
    const SequenceFinished& finished = *h.Sequence(request.key).finished;
    EXPECT_EQ(finished.reason, FinishReason::kDeadline);
    EXPECT_TRUE(absl::IsDeadlineExceeded(finished.status));
    EXPECT_EQ(finished.num_completion_tokens, 0);
  }
  const int64_t total_ns = h.Sequence(late.key).finished->total_ns;
  EXPECT_GE(total_ns, 20'000'000);
  EXPECT_LE(total_ns, 22'000'000);
  EXPECT_EQ(h.pipe.num_tokens_computed(), 4u + 99);
  uint64_t num_queued = 0;
  for (size_t i = 0; i <= h.metrics.queue_seconds.upper_bounds().size(); ++i) {
    num_queued += h.metrics.queue_seconds.count(i);
  }
  EXPECT_EQ(num_queued, 3u);
}

TEST(EngineCasesTest, DeadlineEndsARunningRequest) {
  EngineHarness h(EngineHarness::DefaultOptions());
  Request request = h.NewRequest(Prompt(4), 200);
  request.deadline_ns = h.clock.now_ns + 30'000'000;
  RunInTurn(h, {request});
  const CollectedSequence& sequence = h.Sequence(request.key);
  EXPECT_EQ(sequence.finished->reason, FinishReason::kDeadline);
  EXPECT_GT(sequence.tokens.size(), 20u);
  EXPECT_LE(sequence.tokens.size(), 30u);
}

TEST(EngineCasesTest, B075_RequestsThatCanNeverFitAreRefusedWithTheNumbers) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.num_kv_blocks = 10;
  options.max_model_len = 64;
  EngineHarness h(options);
  const absl::Status status = h.Submit(h.NewRequest(Prompt(50), 1));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  for (const char* number : {"50 tokens", "13 KV blocks", "10 (40 tokens)"}) {
    EXPECT_NE(status.message().find(number), std::string::npos) << status;
  }
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(h.NewRequest(Prompt(5, i), 3));
  // Grows past the pool alone: 40 tokens have room, and one more is sampled from the last of them.
  requests.push_back(h.NewRequest(Prompt(38), 5));
  RunInTurn(h, requests);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(h.Sequence(requests[i].key).tokens.size(), 3u);
  const CollectedSequence& growing = h.Sequence(requests[5].key);
  EXPECT_EQ(growing.tokens, h.ExpectedTokens(requests[5], 0, 3));
  EXPECT_EQ(growing.finished->reason, FinishReason::kLength);
  EXPECT_TRUE(growing.finished->status.ok());
}

TEST(EngineCasesTest, B077_TheQueueIsBoundedByRequestsAndTokens) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.config.set_max_waiting_requests(32);
  options.config.set_max_waiting_tokens(200);
  EngineHarness h(options);
  Request eight = h.NewRequest(Prompt(2), 2);
  eight.n = eight.best_of = 8;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(h.Submit(eight).ok());
    eight.key = h.NewRequest({}, 0).key;
  }
  const absl::Status full = h.Submit(h.NewRequest(Prompt(2), 2));
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_NE(full.message().find("32"), std::string::npos) << full;

  EngineHarness tokens(options);
  ASSERT_TRUE(tokens.Submit(tokens.NewRequest(Prompt(150), 2)).ok());
  const absl::Status full_of_tokens = tokens.Submit(tokens.NewRequest(Prompt(51), 2));
  EXPECT_TRUE(absl::IsResourceExhausted(full_of_tokens)) << full_of_tokens;
  EXPECT_NE(full_of_tokens.message().find("200"), std::string::npos) << full_of_tokens;
  ASSERT_TRUE(tokens.Submit(tokens.NewRequest(Prompt(50), 2)).ok());
  // What runs waits no more, and abandoned ones never run.
  bool was_taken = false;
  ASSERT_TRUE(tokens
                  .RunToEnd([&](int num_waits) {
                    if (num_waits != 10) return;
                    const Request more = tokens.NewRequest(Prompt(51), 2);
                    was_taken = tokens.Submit(more).ok();
                    tokens.engine->Cancel(more.key);
                  })
                  .ok());
  EXPECT_TRUE(was_taken);
  EXPECT_LE(tokens.pipe.num_tokens_computed(), 150u + 50 + 4);
}

TEST(EngineCasesTest, B077_AnAbandonedRequestGivesItsPlaceInTheQueueBack) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.config.set_max_num_seqs(1);
  options.config.set_max_waiting_requests(2);
  EngineHarness h(options);
  ASSERT_TRUE(h.Submit(h.NewRequest(Prompt(4), 60)).ok());
  int num_taken = 0;
  ASSERT_TRUE(h.RunToEnd([&](int num_waits) {
                 if (num_waits > 20) return;
                 const Request waiting = h.NewRequest(Prompt(4), 60);
                 num_taken += h.Submit(waiting).ok() ? 1 : 0;
                 h.engine->Cancel(waiting.key);
               }).ok());
  EXPECT_EQ(num_taken, 20);
}

TEST(EngineCasesTest, ALargeRequestIsTakenWhenNobodyWaits) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.config.set_max_waiting_requests(1);
  options.config.set_max_waiting_tokens(10);
  EngineHarness h(options);
  Request request = h.NewRequest(Prompt(50), 2);
  request.n = request.best_of = 3;
  RunInTurn(h, {request});
  EXPECT_EQ(h.Sequence(request.key, 2).tokens, h.ExpectedTokens(request, 2, 2));
}

TEST(EngineCasesTest, B078_AFailedWorkerEndsEveryRequestAndLeavesNothingInTheCache) {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.config.set_max_num_seqs(2);
  EngineHarness h(options);
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(h.NewRequest(Prompt(40, i), 10));
  for (const Request& request : requests) ASSERT_TRUE(h.Submit(request).ok());
  double num_cached_before = -1;
  const absl::Status status = h.RunToEnd([&](int num_waits) {
    if (num_waits < 3) return;
    num_cached_before = h.metrics.kv_blocks_cached.value();
    h.pipe.fault = absl::UnavailableError("worker 0 was killed by signal 9");
  });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  for (const Request& request : requests) {
    const SequenceFinished& finished = *h.Sequence(request.key).finished;
    EXPECT_EQ(finished.reason, FinishReason::kError);
    EXPECT_TRUE(absl::IsUnavailable(finished.status));
    EXPECT_NE(finished.status.message().find("worker"), std::string::npos);
  }
  // The blocks that the failed steps wrote are still held: nobody can find them.
  EXPECT_EQ(h.metrics.kv_blocks_cached.value(), num_cached_before);
  EXPECT_TRUE(absl::IsUnavailable(h.Submit(h.NewRequest(Prompt(3), 1))));
  EXPECT_EQ(h.engine->num_live_requests(), 0);
}

TEST(EngineCasesTest, B032_NonFiniteLogitsEndOneRequestAndItsBlocksAreDropped) {
  EngineHarness h(EngineHarness::DefaultOptions());
  h.pipe.poisonous_tokens = {99};
  h.options.vocab_size = 99;  // nobody samples it
  h.pipe.sample = [](const std::vector<uint32_t>& tokens, uint64_t seed) {
    return FakeStepPipe::NextToken(tokens, seed, 99);
  };
  Request bad = h.NewRequest(Prompt(18), 10);
  bad.prompt[9] = 99;
  std::vector<Request> good;
  for (int i = 0; i < 5; ++i) good.push_back(h.NewRequest(Prompt(18, 2 + i), 10));
  ASSERT_TRUE(h.Submit(bad).ok());
  for (const Request& request : good) ASSERT_TRUE(h.Submit(request).ok());
  ASSERT_TRUE(h.RunToEnd().ok());
  const SequenceFinished& finished = *h.Sequence(bad.key).finished;
  EXPECT_EQ(finished.reason, FinishReason::kError);
  EXPECT_TRUE(absl::IsInternal(finished.status));
  EXPECT_EQ(finished.status.message(), "non-finite logits");
  EXPECT_EQ(h.metrics.requests_finished[static_cast<size_t>(Outcome::kError)].value(), 1u);
  for (const Request& request : good) {
    EXPECT_EQ(h.Sequence(request.key).tokens, h.ExpectedTokens(request, 0, 10));
  }
  // Six blocks of each good one stay in the cache: 27 tokens with keys and values.
  EXPECT_EQ(h.metrics.kv_blocks_cached.value(), 5 * 6);
}

}  // namespace
}  // namespace pagoda::engine
