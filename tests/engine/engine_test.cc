#include "engine/engine.h"

#include <atomic>
#include <poll.h>
#include <thread>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/fakes/engine_harness.h"
#include "tests/fakes/fake_tokenizer.h"

namespace pagoda::engine {
namespace {

TEST(EngineTest, ServesOneRequest) {
  EngineHarness h(EngineHarness::DefaultOptions());
  const Request request = h.NewRequest(Prompt(10), 5);
  ASSERT_TRUE(h.Submit(request).ok());
  EXPECT_EQ(h.engine->num_live_requests(), 1);
  ASSERT_TRUE(h.RunToEnd().ok());
  const CollectedSequence& sequence = h.Sequence(request.key);
  EXPECT_EQ(sequence.tokens, h.ExpectedTokens(request, 0, 5));
  ASSERT_TRUE(sequence.finished.has_value());
  EXPECT_EQ(sequence.finished->reason, FinishReason::kLength);
  EXPECT_EQ(sequence.finished->num_completion_tokens, 5);
  // Two steps for the prompt, one for each further token; one millisecond each.
  EXPECT_EQ(sequence.finished->first_token_ns, 2'000'000);
  EXPECT_EQ(sequence.finished->total_ns, 6'000'000);
  EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
  EXPECT_EQ(h.engine->num_live_requests(), 0);
}

TEST(EngineTest, ServesManyAtOnce) {
  EngineHarness h(EngineHarness::DefaultOptions());
  std::vector<Request> requests;
  for (int i = 0; i < 30; ++i) {
    requests.push_back(h.NewRequest(Prompt(3 + i, i), 10));
    requests.back().n = requests.back().best_of = 1 + i % 3;
    ASSERT_TRUE(h.Submit(requests.back()).ok());
  }
  ASSERT_TRUE(h.RunToEnd().ok());
  for (const Request& request : requests) {
    for (int i = 0; i < request.n; ++i) {
      EXPECT_EQ(h.Sequence(request.key, i).tokens, h.ExpectedTokens(request, i, 10));
    }
  }
  EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
}

TEST(EngineTest, OneDeliveryPerStepHoldsEverything) {
  EngineHarness h(EngineHarness::DefaultOptions());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(h.Submit(h.NewRequest(Prompt(2, i), 10)).ok());
  ASSERT_TRUE(h.RunToEnd().ok());
  EXPECT_EQ(h.sink.num_deliveries, 10);
}

TEST(EngineTest, SiblingsShareThePromptsFullBlocksAndCopyItsLast) {
  for (const bool prefix_caching : {true, false}) {
    EngineHarness::Options options = EngineHarness::DefaultOptions();
    options.config.set_prefix_caching(prefix_caching);
    EngineHarness h(options);
    Request request = h.NewRequest(Prompt(14), 20);
    request.n = request.best_of = 4;
    ASSERT_TRUE(h.Submit(request).ok());
    double most_used = 0;
    ASSERT_TRUE(h.RunToEnd([&](int) {
                   most_used = std::max(most_used, h.metrics.kv_blocks_used.value());
                 }).ok());
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(h.Sequence(request.key, i).tokens, h.ExpectedTokens(request, i, 20));
    }
    // 33 positions each: three shared blocks, six of each one's own.
    EXPECT_LE(most_used, 3 + 4 * 6);
    EXPECT_EQ(h.pipe.num_tokens_computed(), 14u + 3 * 1 + 4 * 19);
    EXPECT_EQ(h.pipe.num_blocks_copied(), 3u);
    EXPECT_EQ(h.metrics.prompt_tokens_computed.value(), 14u);
  }
}

TEST(EngineTest, BestOfReturnsTheDrawsWithTheHighestMeanLogprob) {
  EngineHarness h(EngineHarness::DefaultOptions());
  Request request = h.NewRequest(Prompt(6), 5);
  request.n = 2;
  request.best_of = 5;
  request.sampling.num_prompt_logprobs = 0;
  ASSERT_TRUE(h.Submit(request).ok());
  ASSERT_TRUE(h.RunToEnd().ok());
  std::vector<std::pair<double, int32_t>> ranked;
  for (int32_t i = 0; i < 5; ++i) {
    std::vector<uint32_t> tokens(request.prompt.begin(), request.prompt.end());
    double sum = 0;
    for (TokenId token : h.ExpectedTokens(request, i, 5)) {
      sum += FakeStepPipe::Logprob(tokens, tokens.size(), static_cast<uint32_t>(token));
      tokens.push_back(static_cast<uint32_t>(token));
    }
    ranked.emplace_back(-sum, i);
  }
  std::sort(ranked.begin(), ranked.end());
  const CollectedRequest& collected = h.sink.requests[request.key.value()];
  ASSERT_EQ(collected.sequences.size(), 2u);
  EXPECT_EQ(collected.num_deltas, 2);
  for (int32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(h.Sequence(request.key, i).tokens, h.ExpectedTokens(request, ranked[i].second, 5));
    // Nobody asked for them: they were for the ranking.
    EXPECT_TRUE(h.Sequence(request.key, i).logprobs.empty());
  }
  EXPECT_EQ(h.Sequence(request.key, 0).prompt_logprobs.size(), 6u);
}

TEST(EngineTest, ACancelledBestOfStillEndsEveryIndexOnce) {
  EngineHarness h(EngineHarness::DefaultOptions());
  Request request = h.NewRequest(Prompt(6), 50);
  request.n = 2;
  request.best_of = 4;
  ASSERT_TRUE(h.Submit(request).ok());
  ASSERT_TRUE(h.RunToEnd([&](int num_waits) {
                 if (num_waits == 8) h.engine->Cancel(request.key);
               }).ok());
  const CollectedRequest& collected = h.sink.requests[request.key.value()];
  ASSERT_EQ(collected.sequences.size(), 2u);
  for (const auto& [index, sequence] : collected.sequences) {
    EXPECT_EQ(sequence.finished->reason, FinishReason::kCancelled);
  }
}

TEST(EngineTest, StopStringsCutTextAndCountTheirTokens) {
  std::vector<std::string> vocabulary;
  for (int i = 0; i < 100; ++i) vocabulary.push_back(absl::StrCat("<", i, ">"));
  const FakeTokenizer tokenizer(vocabulary);
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.tokenizer = &tokenizer;
  EngineHarness h(options);
  Request request = h.NewRequest(Prompt(5), 50);
  const std::vector<TokenId> tokens = h.ExpectedTokens(request, 0, 10);
  request.stop.stop_strings = {vocabulary[tokens[6]] + vocabulary[tokens[7]].substr(0, 2)};
  ASSERT_TRUE(h.Submit(request).ok());
  Request ids_only = h.NewRequest(Prompt(5), 50);
  ids_only.sampling.seed = request.sampling.seed;
  ids_only.stop = request.stop;
  ids_only.want_text = false;
  ASSERT_TRUE(h.Submit(ids_only).ok());
  ASSERT_TRUE(h.RunToEnd().ok());
  const CollectedSequence& sequence = h.Sequence(request.key);
  std::string text;
  for (int i = 0; i < 6; ++i) text += vocabulary[tokens[i]];
  EXPECT_EQ(sequence.text, text);
  EXPECT_EQ(sequence.finished->num_completion_tokens, 8);
  EXPECT_EQ(sequence.finished->reason, FinishReason::kStopSequence);
  // One step was in flight when the stop was seen; its token is nowhere.
  EXPECT_EQ(sequence.tokens, std::vector<TokenId>(tokens.begin(), tokens.begin() + 8));
  EXPECT_EQ(h.Sequence(ids_only.key).tokens, sequence.tokens);
  EXPECT_EQ(h.Sequence(ids_only.key).text, "");
}

TEST(EngineTest, StopStringsNeedATokenizer) {
  EngineHarness h(EngineHarness::DefaultOptions());
  Request request = h.NewRequest(Prompt(5), 5);
  request.stop.stop_strings = {"a"};
  EXPECT_TRUE(absl::IsInvalidArgument(h.Submit(request)));
}

TEST(EngineTest, DrainRefusesNewRequestsAndFinishesOthers) {
  EngineHarness h(EngineHarness::DefaultOptions());
  const Request request = h.NewRequest(Prompt(5), 20);
  ASSERT_TRUE(h.Submit(request).ok());
  absl::Status refused;
  ASSERT_TRUE(h.RunToEnd([&](int num_waits) {
                 if (num_waits != 3) return;
                 h.engine->Drain();
                 refused = h.Submit(h.NewRequest(Prompt(5), 20));
               }).ok());
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_EQ(h.Sequence(request.key).tokens.size(), 20u);
}

TEST(EngineTest, StopEndsEveryRequestWithItsReason) {
  EngineHarness h(EngineHarness::DefaultOptions());
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(h.NewRequest(Prompt(5, i), 100));
    ASSERT_TRUE(h.Submit(requests.back()).ok());
  }
  const absl::Status status = h.RunToEnd([&](int num_waits) {
    if (num_waits == 10) h.engine->Stop(absl::UnavailableError("drain limit has passed"));
  });
  EXPECT_TRUE(status.ok());
  for (const Request& request : requests) {
    EXPECT_EQ(h.Sequence(request.key).finished->reason, FinishReason::kError);
    EXPECT_EQ(h.Sequence(request.key).finished->status.message(), "drain limit has passed");
  }
  EXPECT_TRUE(absl::IsUnavailable(h.Submit(h.NewRequest(Prompt(5), 1))));
}

TEST(EngineTest, AResultThatDoesNotAnswerItsPlanEndsTheRun) {
  class LyingPipe : public FakeStepPipe {
   public:
    using FakeStepPipe::FakeStepPipe;
    absl::StatusOr<bool> Poll(internal::v1::StepResult* result) override {
      absl::StatusOr<bool> polled = FakeStepPipe::Poll(result);
      if (polled.ok() && *polled) result->add_token_ids(1);
      return polled;
    }
  };
  EngineHarness h(EngineHarness::DefaultOptions());
  LyingPipe pipe(FakeStepPipe::Options{});
  Engine engine({.config = h.options.config,
                 .max_model_len = 64,
                 .vocab_size = 100,
                 .num_kv_blocks = 64,
                 .pipe = &pipe,
                 .sink = &h.sink,
                 .metrics = &h.metrics});
  const Request request = h.NewRequest(Prompt(3), 5);
  ASSERT_TRUE(engine.Submit(request).ok());
  EXPECT_TRUE(absl::IsInternal(engine.Run()));
  EXPECT_TRUE(absl::IsUnavailable(h.Sequence(request.key).finished->status));
}

TEST(EngineTest, CountsEveryRequestAndTokenOnce) {
  EngineHarness h(EngineHarness::DefaultOptions());
  std::vector<Request> requests;
  for (int i = 0; i < 20; ++i) {
    requests.push_back(h.NewRequest(Prompt(9, i % 3), 1 + i));
    requests.back().stop.eos_token_ids = {i, i + 20};
    ASSERT_TRUE(h.Submit(requests.back()).ok());
  }
  ASSERT_TRUE(h.RunToEnd([&](int num_waits) {
                 if (num_waits == 5) h.engine->Cancel(requests[19].key);
               }).ok());
  uint64_t num_tokens = 0, num_cached = 0;
  for (const Request& request : requests) {
    num_tokens += h.Sequence(request.key).tokens.size();
    num_cached += h.sink.requests[request.key.value()].started->num_cached_tokens;
  }
  const EngineMetrics& m = h.metrics;
  EXPECT_EQ(m.generation_tokens.value(), num_tokens);
  EXPECT_EQ(m.prompt_tokens_cached.value(), num_cached);
  EXPECT_EQ(m.prefix_hit_tokens.value(), num_cached);
  EXPECT_GT(num_cached, 0u);
  const auto total = [](const MetricHistogram& histogram) {
    uint64_t count = 0;
    for (size_t i = 0; i <= histogram.upper_bounds().size(); ++i) count += histogram.count(i);
    return count;
  };
  EXPECT_EQ(total(m.request_seconds), 20u);
  EXPECT_EQ(total(m.queue_seconds), 20u);
  EXPECT_EQ(total(m.request_prompt_tokens), 20u);
  EXPECT_EQ(total(m.step_tokens), m.steps.value());
  EXPECT_EQ(
      total(m.step_decode_seconds) + total(m.step_mixed_seconds) + total(m.step_prefill_seconds),
      m.steps.value());
  EXPECT_EQ(total(m.inter_token_seconds) + total(m.time_to_first_token_seconds), num_tokens);
  EXPECT_EQ(m.step_tokens.sum(), static_cast<double>(h.pipe.num_tokens_computed()));
}

// Submits, cancels and reads from several threads while the engine runs in its own.
TEST(EngineTest, FrontEndThreadsMaySubmitAndCancelAtAnyTime) {
  class SleepingPipe : public FakeStepPipe {
   public:
    using FakeStepPipe::FakeStepPipe;
    void Wait(int wake_fd, int64_t deadline_ns) override {
      if (num_in_flight() == 0) {
        pollfd wake = {.fd = wake_fd, .events = POLLIN};
        poll(&wake, 1, -1);
      }
      FakeStepPipe::Wait(wake_fd, deadline_ns);
    }
  };
  class CountingSink : public OutputSink {
   public:
    void Deliver(std::vector<OutputDelta> deltas) override {
      for (const OutputDelta& delta : deltas) num_ended += delta.last ? 1 : 0;
    }
    std::atomic<int> num_ended{0};
  };
  constexpr int kNumThreads = 4, kNumRequests = 200;
  EngineHarness h(EngineHarness::DefaultOptions());
  SleepingPipe pipe(FakeStepPipe::Options{});
  CountingSink sink;
  Engine engine({.config = h.options.config,
                 .max_model_len = 64,
                 .vocab_size = 100,
                 .num_kv_blocks = 64,
                 .pipe = &pipe,
                 .sink = &sink,
                 .metrics = &h.metrics});
  std::thread engine_thread([&] { EXPECT_TRUE(engine.Run().ok()); });
  std::vector<std::thread> clients;
  std::atomic<int> num_accepted{0};
  for (int t = 0; t < kNumThreads; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < kNumRequests; ++i) {
        Request request;
        request.key = RequestKey(t * kNumRequests + i + 1);
        request.prompt = Prompt(5 + i % 20, i % 7);
        request.stop.max_tokens = 5;
        request.want_text = false;
        const RequestKey key = request.key;
        if (engine.Submit(std::move(request)).ok()) ++num_accepted;
        if (i % 3 == 0) engine.Cancel(key);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  while (engine.num_live_requests() > 0) std::this_thread::yield();
  engine.Stop(absl::UnavailableError("test has ended"));
  engine_thread.join();
  EXPECT_EQ(pipe.violation(), "");
  EXPECT_EQ(sink.num_ended.load(), num_accepted.load());
  EXPECT_GT(num_accepted.load(), 0);
}

}  // namespace
}  // namespace pagoda::engine
