// Drafts from earlier text, as a client meets them: nothing but speed changes.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::speculation_test {
namespace {

std::unique_ptr<TestDaemon> StartOrDie(std::vector<std::string> flags) {
  for (const std::string& flag : PreciseFlags()) flags.push_back(flag);
  auto daemon = TestDaemon::Start({.flags = std::move(flags)});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  if (!daemon.ok()) std::abort();
  return *std::move(daemon);
}

constexpr const char* kRefrain =
    "The cat sat on the mat. The dog sat on the log. The bird sat on the word. ";

v1::GenerateRequest Repetitive(uint32_t max_tokens) {
  v1::GenerateRequest request =
      TextRequest(absl::StrCat(kRefrain, kRefrain, kRefrain, "The cat sat"), max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0.0f);
  return request;
}

void SetDrafts(uint32_t max_draft_tokens, v1::GenerateRequest* request) {
  request->mutable_sampling()->mutable_ngram_speculation()->set_max_draft_tokens(max_draft_tokens);
}

TEST(Speculation, SameTokensGreedySeededAndWithPenalties) {
  const auto daemon = StartOrDie({});
  std::vector<v1::GenerateRequest> requests;
  for (int kind = 0; kind < 5; ++kind) {
    v1::GenerateRequest request = Repetitive(100);
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_temperature(kind == 0 ? 0.0f : 0.7f);
    if (kind > 0) sampling.set_seed(40 + static_cast<uint64_t>(kind));
    if (kind == 2) sampling.set_repetition_penalty(1.1f), sampling.set_frequency_penalty(0.1f);
    if (kind == 0 && !IsExactDevice()) request.mutable_output()->set_logprobs(2);
    if (kind == 3) sampling.set_top_p(0.8f), request.mutable_output()->set_n(3);
    if (kind == 4) {
      request.mutable_output()->set_logprobs(3);
      request.mutable_stopping()->add_stop("mat");
      request.mutable_stopping()->set_min_tokens(20);
      sampling.set_temperature(0.0f);
    }
    requests.push_back(std::move(request));
  }
  for (v1::GenerateRequest& request : requests) {
    const CallResult plain = Generate(daemon->stub(), request);
    ASSERT_TRUE(plain.status.ok()) << plain.status.error_message();
    for (const uint32_t drafts : {1u, 4u, 16u}) {
      SetDrafts(drafts, &request);
      for (const CallResult& drafted :
           {Generate(daemon->stub(), request), StreamGenerate(daemon->stub(), request)}) {
        ASSERT_TRUE(drafted.status.ok()) << drafted.status.error_message();
        EXPECT_EQ(drafted.started.sampling().ngram_speculation().max_draft_tokens(), drafts);
        ASSERT_EQ(drafted.sequences.size(), plain.sequences.size());
        for (const auto& [index, sequence] : plain.sequences) {
          EXPECT_TRUE(drafted.sequences.at(index).SameOutput(sequence))
              << drafted.sequences.at(index).text << "\n"
              << sequence.text;
        }
      }
    }
  }
}

TEST(Speculation, TheServersDefaultAndItsMetrics) {
  const auto daemon = StartOrDie({"--ngram-draft-tokens=8"});
  const CallResult result = Generate(daemon->stub(), Repetitive(200));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.started.sampling().ngram_speculation().max_draft_tokens(), 8u);
  const double drafts = *daemon->Metric("pagoda_spec_drafts_total{");
  const double drafted = *daemon->Metric("pagoda_spec_draft_tokens_total{");
  const double accepted = *daemon->Metric("pagoda_spec_accepted_tokens_total{");
  EXPECT_GT(drafts, 0);
  EXPECT_GE(drafted, drafts);
  EXPECT_GT(accepted, drafted / 2);
  EXPECT_EQ(*daemon->Metric("pagoda_generation_tokens_total{"), 200);
  // Every token that was not drafted took a step of its own.
  EXPECT_LE(*daemon->Metric("pagoda_step_tokens_count"), 200 - accepted + 2);

  v1::GenerateRequest none = Repetitive(50);
  SetDrafts(0, &none);
  ASSERT_TRUE(Generate(daemon->stub(), none).status.ok());
  EXPECT_EQ(*daemon->Metric("pagoda_spec_drafts_total{"), drafts);
}

// A constraint goes before drafts.
TEST(Speculation, ConstraintsHoldWithDraftsAskedFor) {
  const auto daemon = StartOrDie({});
  v1::GenerateRequest request = Repetitive(100);
  SetDrafts(8, &request);
  request.mutable_sampling()->set_regex("(ab ){12}c");
  const CallResult result = Generate(daemon->stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.first().text, "ab ab ab ab ab ab ab ab ab ab ab ab c");
}

}  // namespace
}  // namespace pagoda::e2e::speculation_test
