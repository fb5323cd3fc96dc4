// Beam search as a client meets it, against a search made of calls for one token each.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::beams_test {
namespace {

struct PlainBeam {
  std::vector<uint32_t> tokens;  // of the output
  double sum = 0.0;
  double score = 0.0;
};

struct Search {
  uint32_t width = 1;
  float length_penalty = 1.0f;
  bool early_stopping = false;
  uint32_t max_tokens = 1;
  std::vector<uint32_t> stop_ids;
};

class Beams : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto daemon = TestDaemon::Start({.flags = PreciseFlags()});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = daemon->release();
  }
  static void TearDownTestSuite() { delete daemon_; }
  static v1::InferenceService::Stub& stub() { return daemon_->stub(); }

  static v1::GenerateRequest Request(const Search& search, const std::vector<uint32_t>& prompt) {
    v1::GenerateRequest request = IdsRequest(prompt, search.max_tokens);
    auto& beams = *request.mutable_sampling()->mutable_beam_search();
    beams.set_width(search.width);
    beams.set_length_penalty(search.length_penalty);
    beams.set_early_stopping(search.early_stopping);
    request.mutable_output()->set_n(search.width);
    request.mutable_output()->set_logprobs(1);
    request.mutable_stopping()->set_ignore_eos(true);
    for (const uint32_t id : search.stop_ids) request.mutable_stopping()->add_stop_token_ids(id);
    return request;
  }

  static std::vector<PlainBeam> SearchPlainly(const Search& search, std::vector<uint32_t> prompt);
  static void ExpectSame(const CallResult& result, const std::vector<PlainBeam>& expected);

  static inline TestDaemon* daemon_ = nullptr;
};

std::vector<PlainBeam> Beams::SearchPlainly(const Search& search, std::vector<uint32_t> prompt) {
  std::vector<PlainBeam> open = {{}}, ended;
  while (!open.empty()) {
    std::vector<PlainBeam> all;
    for (const PlainBeam& beam : open) {
      std::vector<uint32_t> ids = prompt;
      ids.insert(ids.end(), beam.tokens.begin(), beam.tokens.end());
      v1::GenerateRequest request = IdsRequest(ids, 1);
      request.mutable_output()->set_logprobs(20);
      const CallResult result = Generate(stub(), request);
      EXPECT_TRUE(result.status.ok()) << result.status.error_message();
      for (const auto& top : result.first().logprobs.at(0).top()) {
        PlainBeam child = beam;
        child.tokens.push_back(top.token_id());
        child.sum += top.logprob();
        child.score =
            child.sum / std::pow(static_cast<double>(child.tokens.size()), search.length_penalty);
        all.push_back(child);
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const PlainBeam& a, const PlainBeam& b) {
      return a.sum > b.sum;
    });
    open.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& ids = search.stop_ids;
      const bool ends = all[i].tokens.size() == search.max_tokens ||
                        std::count(ids.begin(), ids.end(), all[i].tokens.back()) > 0;
      if (ends && i < search.width) ended.push_back(all[i]);
      if (!ends && open.size() < search.width) open.push_back(all[i]);
    }
    std::stable_sort(ended.begin(), ended.end(), [](const PlainBeam& a, const PlainBeam& b) {
      return a.score > b.score;
    });
    if (ended.size() > search.width) ended.resize(search.width);
    if (ended.size() < search.width || open.empty()) continue;
    if (search.early_stopping || open[0].score <= ended.back().score) break;
  }
  return ended;
}

void Beams::ExpectSame(const CallResult& result, const std::vector<PlainBeam>& expected) {
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_EQ(result.sequences.size(), expected.size());
  for (uint32_t i = 0; i < expected.size(); ++i) {
    const CallResult::Sequence& sequence = result.sequences.at(i);
    double sum = 0.0;
    for (const v1::TokenLogprobs& logprobs : sequence.logprobs) sum += logprobs.token().logprob();
    if (IsExactDevice()) {
      EXPECT_EQ(sequence.token_ids, expected[i].tokens) << "beam " << i;
      EXPECT_NEAR(sum, expected[i].sum, 1e-3) << "beam " << i;
    } else {
      // Beams that are about as good may change places.
      EXPECT_NEAR(sum, expected[i].sum, 0.1) << "beam " << i;
    }
  }
}

TEST_F(Beams, AreThoseOfAPlainSearch) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text("Once upon a time there was a little");
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;
  ASSERT_TRUE(stub().Tokenize(&context, tokenize, &tokens).ok());
  const std::vector<uint32_t> prompt(tokens.token_ids().begin(), tokens.token_ids().end());
  // Full stops end beams.
  tokenize.set_text("a b. c");
  grpc::ClientContext other;
  ASSERT_TRUE(stub().Tokenize(&other, tokenize, &tokens).ok());
  for (const Search& search : {Search{.width = 1, .max_tokens = 8},
                               Search{.width = 3, .max_tokens = 12},
                               Search{.width = 4, .length_penalty = 0.0f, .max_tokens = 10},
                               Search{.width = 4, .length_penalty = 2.0f, .max_tokens = 16}}) {
    for (const bool early_stopping : {false, true}) {
      Search stopped = search;
      stopped.early_stopping = early_stopping;
      stopped.stop_ids.assign(tokens.token_ids().begin(), tokens.token_ids().end());
      const std::vector<PlainBeam> expected = SearchPlainly(stopped, prompt);
      ExpectSame(Generate(stub(), Request(stopped, prompt)), expected);
      const CallResult stream = StreamGenerate(stub(), Request(stopped, prompt));
      ExpectSame(stream, expected);
    }
  }
}

TEST_F(Beams, TextEndsBeforeAStopString) {
  v1::GenerateRequest request = TextRequest("Once upon a time", 40);
  request.mutable_sampling()->mutable_beam_search()->set_width(4);
  request.mutable_stopping()->add_stop(".");
  const CallResult result = Generate(stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_EQ(result.sequences.size(), 1u);
  EXPECT_THAT(result.first().text, ::testing::Not(::testing::HasSubstr(".")));
  EXPECT_EQ(result.first().finished.reason(), v1::FINISH_REASON_STOP_SEQUENCE);
  EXPECT_EQ(result.started.sampling().beam_search().length_penalty(), 1.0f);
}

}  // namespace
}  // namespace pagoda::e2e::beams_test
