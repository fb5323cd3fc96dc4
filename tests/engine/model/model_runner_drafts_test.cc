// Steps with drafts give what steps without them give, whatever is drafted.
#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "tests/engine/model/random_llama.h"
#include "tests/engine/model/runner_driver.h"

namespace pagoda::engine {
namespace {

using internal::v1::RowSampling;

constexpr uint32_t kDraftVocab = 96;
constexpr int kMaxTokens = 40;

using DraftFn = std::function<std::vector<uint32_t>(const std::vector<uint32_t>& tokens)>;

// The next `size` tokens of `all`, with every `wrong_every`-th of them (counted over the whole
// text) changed; 0: none.
DraftFn DraftOf(std::vector<uint32_t> all, size_t size, size_t wrong_every) {
  return [=](const std::vector<uint32_t>& tokens) {
    std::vector<uint32_t> draft;
    for (size_t i = tokens.size(); i < std::min(all.size(), tokens.size() + size); ++i) {
      const bool is_wrong = wrong_every > 0 && i % wrong_every == 0;
      draft.push_back(is_wrong ? (all[i] + 1) % kDraftVocab : all[i]);
    }
    return draft;
  };
}

class ModelRunnerDraftsTest : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<RunnerDriver> Open(DriverOptions options = {}) {
    options.model_dir = dir_.path();
    options.graphs = GetParam();
    auto driver = RunnerDriver::Make(options);
    EXPECT_TRUE(driver.ok()) << driver.status();
    return driver.ok() ? *std::move(driver) : nullptr;
  }

  // Runs the sequences as they are, then drafted by what they gave, rightly and wrongly.
  void ExpectSameWithDrafts(std::vector<DrivenSequence> plain, DriverOptions options = {}) {
    std::vector<DrivenSequence> expected = plain;
    ASSERT_TRUE(Open(options)->Run(expected).ok());
    for (const size_t wrong_every : {0, 1, 2, 5, 7}) {
      const auto driver = Open(options);
      std::vector<DrivenSequence> drafted = plain;
      for (size_t i = 0; i < drafted.size(); ++i) {
        std::vector<uint32_t> all = plain[i].prompt;
        all.insert(all.end(), expected[i].tokens.begin(), expected[i].tokens.end());
        drafted[i].draft = DraftOf(std::move(all), 1 + i % 5, wrong_every);
      }
      ASSERT_TRUE(driver->Run(drafted).ok());
      for (size_t i = 0; i < drafted.size(); ++i) {
        EXPECT_EQ(drafted[i].tokens, expected[i].tokens) << i << " wrong " << wrong_every;
        ExpectSameLogprobs(drafted[i], expected[i]);
        if (wrong_every == 0) {
          EXPECT_LT(drafted[i].num_steps, expected[i].num_steps);
        }
      }
    }
  }

  static void ExpectSameLogprobs(const DrivenSequence& actual, const DrivenSequence& expected) {
    ASSERT_EQ(actual.logprobs.size(), expected.logprobs.size());
    for (size_t i = 0; i < actual.logprobs.size(); ++i) {
      EXPECT_NEAR(actual.logprobs[i].logprob(), expected.logprobs[i].logprob(), 1e-4);
      EXPECT_EQ(actual.logprobs[i].rank(), expected.logprobs[i].rank());
    }
  }

  const fixtures::TemporaryDir dir_ = fixtures::WriteModelDir(RandomLlama());
};

DrivenSequence Sequence(uint32_t seed, RowSampling sampling) {
  fixtures::Random random(seed);
  DrivenSequence sequence = {.max_tokens = kMaxTokens, .sampling = std::move(sampling)};
  for (uint32_t i = 0; i < 5 + 7 * seed; ++i)
    sequence.prompt.push_back(static_cast<uint32_t>(random.Next() % kDraftVocab));
  return sequence;
}

TEST_P(ModelRunnerDraftsTest, GreedyAndSeededGiveTheSameTokens) {
  std::vector<DrivenSequence> sequences;
  for (uint32_t i = 0; i < 6; ++i) {
    RowSampling sampling = GreedySampling();
    if (i % 2 == 1) {
      sampling.set_temperature(0.9f);
      sampling.set_seed(77 + i);
      sampling.set_top_p(0.95f);
      sampling.set_top_k(30);
    }
    if (i % 3 == 0) sampling.set_num_logprobs(3);
    sequences.push_back(Sequence(i, sampling));
  }
  ExpectSameWithDrafts(std::move(sequences));
}

TEST_P(ModelRunnerDraftsTest, PenaltiesAndBadWordsCountTheDraft) {
  std::vector<DrivenSequence> sequences;
  for (uint32_t i = 0; i < 4; ++i) {
    RowSampling sampling = GreedySampling();
    sampling.set_temperature(i % 2 == 0 ? 0.0f : 0.8f);
    sampling.set_seed(5);
    sampling.set_repetition_penalty(1.3f);
    sampling.set_frequency_penalty(0.4f);
    sampling.set_presence_penalty(0.2f);
    for (uint32_t first = 0; first < kDraftVocab; ++first) {
      internal::v1::TokenSequence& word = *sampling.add_bad_words();
      word.add_token_ids(first);
      word.add_token_ids((first * 5 + i) % kDraftVocab);
    }
    sampling.set_min_tokens(9);
    sampling.add_min_tokens_masked_ids(3);
    sequences.push_back(Sequence(i + 1, sampling));
  }
  ExpectSameWithDrafts(std::move(sequences));
}

// Rows of logits in several chunks, and a budget that cuts drafts.
TEST_P(ModelRunnerDraftsTest, MoreRowsThanFitOneChunk) {
  std::vector<DrivenSequence> sequences;
  for (uint32_t i = 0; i < 5; ++i) {
    RowSampling sampling = GreedySampling();
    sampling.set_num_logprobs(20);
    sequences.push_back(Sequence(i, sampling));
  }
  ExpectSameWithDrafts(std::move(sequences), {.max_num_seqs = 5, .max_num_batched_tokens = 24});
}

// Some drafted, some not: those are planned ahead as before.
TEST_P(ModelRunnerDraftsTest, BesideSequencesInFlow) {
  std::vector<DrivenSequence> plain;
  for (uint32_t i = 0; i < 6; ++i) plain.push_back(Sequence(i, GreedySampling()));
  std::vector<DrivenSequence> expected = plain;
  ASSERT_TRUE(Open()->Run(expected).ok());
  for (size_t i = 0; i < plain.size(); i += 2) {
    std::vector<uint32_t> all = plain[i].prompt;
    all.insert(all.end(), expected[i].tokens.begin(), expected[i].tokens.end());
    plain[i].draft = DraftOf(std::move(all), 4, 3);
  }
  ASSERT_TRUE(Open()->Run(plain).ok());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(plain[i].tokens, expected[i].tokens) << i;
}

INSTANTIATE_TEST_SUITE_P(Graphs, ModelRunnerDraftsTest, testing::Bool());

}  // namespace
}  // namespace pagoda::engine
