// Whole engines that search beams, against a plain search over the same fake model.
#include <algorithm>
#include <cmath>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/fakes/engine_harness.h"
#include "tests/fakes/fake_tokenizer.h"

namespace pagoda::engine {
namespace {

constexpr uint32_t kVocab = 30;

struct PlainBeam {
  std::vector<uint32_t> tokens;  // of the output
  double sum = 0.0;
  double score = 0.0;
};

// Every continuation of every beam, sorted: no lists of tops, no sequences, no blocks.
std::vector<PlainBeam> SearchPlainly(const Request& request, int32_t max_tokens) {
  const BeamParams& params = *request.sampling.beams;
  const auto width = static_cast<size_t>(params.width);
  std::vector<PlainBeam> open = {{}}, ended;
  const auto by_score = [](const PlainBeam& a, const PlainBeam& b) { return a.score > b.score; };
  const auto score = [&](const PlainBeam& beam) {
    return beam.sum / std::pow(static_cast<double>(beam.tokens.size()), params.length_penalty);
  };
  while (!open.empty()) {
    std::vector<PlainBeam> all;
    for (const PlainBeam& beam : open) {
      std::vector<uint32_t> tokens(request.prompt.begin(), request.prompt.end());
      tokens.insert(tokens.end(), beam.tokens.begin(), beam.tokens.end());
      for (uint32_t next = 0; next < kVocab; ++next) {
        PlainBeam child = beam;
        child.tokens.push_back(next);
        child.sum += FakeStepPipe::Logprob(tokens, tokens.size(), next);
        all.push_back(child);
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const PlainBeam& a, const PlainBeam& b) {
      return a.sum > b.sum;
    });
    open.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& eos = request.stop.eos_token_ids;
      const auto last = static_cast<TokenId>(all[i].tokens.back());
      const bool ends = std::count(eos.begin(), eos.end(), last) > 0 ||
                        static_cast<int32_t>(all[i].tokens.size()) == max_tokens;
      all[i].score = score(all[i]);
      if (ends && i < width) ended.push_back(all[i]);
      if (!ends && open.size() < width) open.push_back(all[i]);
    }
    std::stable_sort(ended.begin(), ended.end(), by_score);
    if (ended.size() > width) ended.resize(width);
    if (ended.size() < width || open.empty()) continue;
    if (params.early_stopping || open[0].score <= ended.back().score) break;
  }
  return ended;
}

EngineHarness::Options Options() {
  EngineHarness::Options options = EngineHarness::DefaultOptions();
  options.vocab_size = kVocab;
  options.config.set_max_num_batched_tokens(16);
  return options;
}

Request NewBeams(EngineHarness& h, BeamParams params, std::vector<TokenId> prompt, int32_t tokens) {
  Request request = h.NewRequest(std::move(prompt), tokens);
  request.sampling.beams = params;
  request.best_of = params.width;
  request.n = params.width;
  request.stop.eos_token_ids = {3, 7};
  return request;
}

void ExpectBeams(EngineHarness& h, const Request& request, int32_t max_tokens) {
  const std::vector<PlainBeam> expected = SearchPlainly(request, max_tokens);
  const CollectedRequest& collected = h.sink.requests[request.key.value()];
  ASSERT_TRUE(collected.has_ended);
  ASSERT_EQ(collected.sequences.size(), static_cast<size_t>(request.n));
  // Nothing comes before the end.
  EXPECT_EQ(collected.num_deltas, request.n);
  for (int32_t i = 0; i < request.n; ++i) {
    const CollectedSequence& sequence = h.Sequence(request.key, i);
    const std::vector<uint32_t> tokens(sequence.tokens.begin(), sequence.tokens.end());
    EXPECT_EQ(tokens, expected[static_cast<size_t>(i)].tokens) << "beam " << i;
    EXPECT_EQ(sequence.finished->num_completion_tokens, static_cast<int32_t>(tokens.size()));
    EXPECT_EQ(
        sequence.finished->reason,
        tokens.back() == 3 || tokens.back() == 7 ? FinishReason::kStop : FinishReason::kLength);
  }
}

TEST(BeamsTest, AreThoseOfAPlainSearch) {
  for (const int32_t width : {1, 2, 4, 7}) {
    for (const float penalty : {0.0f, 1.0f, 2.0f}) {
      for (const bool early_stopping : {false, true}) {
        EngineHarness h(Options());
        const Request request =
            NewBeams(h,
                     {.width = width, .length_penalty = penalty, .early_stopping = early_stopping},
                     {1, 2, 3, 4, 5, 6},
                     18);
        ASSERT_TRUE(h.Submit(request).ok());
        const absl::Status status = h.RunToEnd();
        ASSERT_TRUE(status.ok()) << status;
        ExpectBeams(h, request, 18);
        EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
      }
    }
  }
}

// Other requests, too few slots, blocks and budget: beams that wait for others give way.
TEST(BeamsTest, BesideOthersAndWithLittleRoom) {
  for (const auto& [num_slots, num_blocks, caching] : {std::tuple(8, 64, true),
                                                       std::tuple(3, 24, true),
                                                       std::tuple(2, 10, true),
                                                       std::tuple(1, 10, true),
                                                       std::tuple(4, 12, false)}) {
    EngineHarness::Options options = Options();
    options.config.set_max_num_seqs(static_cast<uint32_t>(num_slots));
    options.config.set_prefix_caching(caching);
    options.num_kv_blocks = num_blocks;
    EngineHarness h(options);
    std::vector<Request> beams, plain;
    for (int32_t i = 0; i < 4; ++i) {
      beams.push_back(
          NewBeams(h, {.width = 2 + i % 3, .early_stopping = i % 2 == 0}, {1, 2, 9, i, 8}, 12));
      beams.back().n = 1 + i % 2;
      plain.push_back(h.NewRequest({5, i, 6}, 15));
      ASSERT_TRUE(h.Submit(beams.back()).ok() && h.Submit(plain.back()).ok());
    }
    const absl::Status status = h.RunToEnd();
    ASSERT_TRUE(status.ok()) << status << " " << num_slots << " slots";
    for (const Request& request : beams) ExpectBeams(h, request, 12);
    for (const Request& request : plain)
      EXPECT_EQ(h.Sequence(request.key).tokens, h.ExpectedTokens(request, 0, 15));
    EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
  }
}

TEST(BeamsTest, ShareTheBlocksOfWhatTheyHaveInCommon) {
  EngineHarness h(Options());
  std::vector<TokenId> prompt(40, 1);
  const Request request = NewBeams(h, {.width = 4}, prompt, 12);
  ASSERT_TRUE(h.Submit(request).ok());
  double most_used = 0;
  ASSERT_TRUE(h.RunToEnd([&](int) {
                 most_used = std::max(most_used, h.metrics.kv_blocks_used.value());
               }).ok());
  ExpectBeams(h, request, 12);
  // Ten blocks of the prompt once, and at most three of each beam's own.
  EXPECT_LE(most_used, 10 + 4 * 3);
  // Nothing twice: a beam that takes another's place copies what its last block holds already.
  EXPECT_LE(h.pipe.num_tokens_computed(), 40u + 11 * 4);
  EXPECT_GT(h.pipe.num_blocks_copied(), 0u);
}

TEST(BeamsTest, ShareAllOfWhatTheyHaveInCommonWithoutAPrefixCacheAndBehindAWindow) {
  for (const int32_t window : {0, 3, 4, 9}) {
    for (const bool caching : {false, true}) {
      EngineHarness::Options options = Options();
      options.config.set_prefix_caching(caching);
      options.kv_window = window;
      EngineHarness h(options);
      const Request request = NewBeams(h, {.width = 4}, std::vector<TokenId>(17, 1), 30);
      ASSERT_TRUE(h.Submit(request).ok());
      const absl::Status status = h.RunToEnd();
      ASSERT_TRUE(status.ok()) << status << " window " << window;
      ExpectBeams(h, request, 30);
      EXPECT_LE(h.pipe.num_tokens_computed(), 17u + 29 * 4) << window << " " << caching;
      EXPECT_GT(h.pipe.num_blocks_copied(), 0u);
      EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
    }
  }
}

TEST(BeamsTest, TextAndLogprobsOfTheBest) {
  std::vector<std::string> vocab;
  for (uint32_t i = 0; i < kVocab; ++i) vocab.push_back(std::string(1, static_cast<char>('A' + i)));
  const FakeTokenizer tokenizer(vocab);
  EngineHarness::Options options = Options();
  options.tokenizer = &tokenizer;
  EngineHarness h(options);
  Request request = NewBeams(h, {.width = 3}, {1, 2, 3}, 10);
  request.n = 1;
  request.sampling.num_logprobs = 2;
  ASSERT_TRUE(h.Submit(request).ok());
  ASSERT_TRUE(h.RunToEnd().ok());
  ExpectBeams(h, request, 10);
  const CollectedSequence& best = h.Sequence(request.key);
  ASSERT_EQ(best.logprobs.size(), best.tokens.size());
  std::vector<uint32_t> tokens = {1, 2, 3};
  std::string text;
  for (size_t i = 0; i < best.tokens.size(); ++i) {
    const auto token = static_cast<uint32_t>(best.tokens[i]);
    EXPECT_EQ(best.logprobs[i].token.logprob, FakeStepPipe::Logprob(tokens, tokens.size(), token));
    EXPECT_EQ(best.logprobs[i].top.size(), 2u);
    EXPECT_GE(best.logprobs[i].rank, 1);
    tokens.push_back(token);
    if (token != 3 && token != 7) text += vocab[token];
  }
  EXPECT_EQ(best.text, text);
}

TEST(BeamsTest, CancelledAndDrainedLikeOthers) {
  EngineHarness h(Options());
  const Request request = NewBeams(h, {.width = 4}, {1, 2, 3}, 200);
  ASSERT_TRUE(h.Submit(request).ok());
  ASSERT_TRUE(h.RunToEnd([&](int num_waits) {
                 if (num_waits == 5) h.engine->Cancel(request.key);
               }).ok());
  EXPECT_EQ(h.Sequence(request.key).finished->reason, FinishReason::kCancelled);
  EXPECT_EQ(h.sink.requests[request.key.value()].sequences.size(), 4u);
  EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
}

// The simulation found it: tokens of beams that nobody got were counted as the client's.
TEST(BeamsTest, ASearchThatIsCutShortCountsNoTokens) {
  EngineHarness h(Options());
  const Request request = NewBeams(h, {.width = 3}, {1, 2, 3}, 200);
  ASSERT_TRUE(h.Submit(request).ok());
  ASSERT_TRUE(h.RunToEnd([&](int num_waits) {
                 if (num_waits == 9) h.engine->Cancel(request.key);
               }).ok());
  for (const auto& [index, sequence] : h.sink.requests[request.key.value()].sequences) {
    EXPECT_TRUE(sequence.tokens.empty());
    EXPECT_EQ(sequence.finished->num_completion_tokens, 0);
  }
}

TEST(BeamsTest, PromptOnlyAndPoolLimits) {
  EngineHarness::Options options = Options();
  options.num_kv_blocks = 5;
  options.max_model_len = 100;
  EngineHarness h(options);
  const Request scored = NewBeams(h, {.width = 2}, {1, 2, 3}, 0);
  Request grown = NewBeams(h, {.width = 2, .length_penalty = 0.5f}, {4, 5, 6}, 90);
  grown.stop.ignore_eos = true;
  ASSERT_TRUE(h.Submit(scored).ok() && h.Submit(grown).ok());
  const absl::Status status = h.RunToEnd();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(h.Sequence(scored.key).tokens.empty());
  EXPECT_EQ(h.Sequence(scored.key).finished->reason, FinishReason::kLength);
  // Twenty positions are all that there is.
  EXPECT_EQ(h.Sequence(grown.key).finished->reason, FinishReason::kLength);
  EXPECT_GE(h.Sequence(grown.key).tokens.size(), 15u);
  EXPECT_EQ(h.metrics.kv_blocks_used.value(), 0);
}

}  // namespace
}  // namespace pagoda::engine
