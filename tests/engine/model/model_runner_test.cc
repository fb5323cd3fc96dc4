#include "engine/model/model_runner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model/golden.h"
#include "tests/engine/model/random_llama.h"
#include "tests/engine/model/reference_llama.h"
#include "tests/engine/model/runner_driver.h"
#include "tests/reference/sampler.h"

namespace pagoda::engine {
namespace {

using internal::v1::RowSampling;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kVocab = 96;

class ModelRunnerTest : public testing::Test {
 protected:
  std::unique_ptr<RunnerDriver> Open(DriverOptions options = {}) {
    options.model_dir = dir_.path();
    auto driver = RunnerDriver::Make(options);
    EXPECT_TRUE(driver.ok()) << driver.status();
    return driver.ok() ? *std::move(driver) : nullptr;
  }

  const fixtures::ModelFiles model_ = RandomLlama();
  const fixtures::TemporaryDir dir_ = fixtures::WriteModelDir(model_);
};

std::vector<uint32_t> PseudoPrompt(uint32_t seed, size_t size) {
  fixtures::Random random(seed);
  std::vector<uint32_t> prompt(size);
  for (uint32_t& token : prompt) token = static_cast<uint32_t>(random.Next() % kVocab);
  return prompt;
}

// Greedy and seeded, with and without log-probabilities, penalties and lists.
std::vector<DrivenSequence> MixedSequences() {
  std::vector<DrivenSequence> sequences;
  for (uint32_t i = 0; i < 12; ++i) {
    DrivenSequence sequence = {.prompt = PseudoPrompt(i, 1 + 7 * i % 60),
                               .max_tokens = 5 + static_cast<int32_t>(3 * i % 17),
                               .sampling = GreedySampling(),
                               .first_step = 1 + 2 * i};
    RowSampling& sampling = sequence.sampling;
    if (i % 2 == 1) {
      sampling.set_temperature(0.8f);
      sampling.set_seed(1000 + i);
      sampling.set_top_k(20);
      sampling.set_top_p(0.95f);
    }
    if (i % 3 == 0) sampling.set_num_logprobs(4);
    if (i % 4 == 0) sampling.set_num_prompt_logprobs(2);
    if (i % 5 == 0) {
      sampling.set_repetition_penalty(1.2f);
      sampling.set_frequency_penalty(0.3f);
    }
    if (i % 6 == 0) sampling.add_bias_token_ids(i + 1), sampling.add_bias_values(3.0f);
    sequences.push_back(sequence);
  }
  return sequences;
}

void ExpectSameResults(const DrivenSequence& actual, const DrivenSequence& expected) {
  EXPECT_EQ(actual.tokens, expected.tokens);
  ASSERT_EQ(actual.logprobs.size(), expected.logprobs.size());
  for (size_t i = 0; i < actual.logprobs.size(); ++i) {
    internal::v1::TokenLogprobs a = actual.logprobs[i], b = expected.logprobs[i];
    a.clear_slot(), b.clear_slot();
    EXPECT_EQ(a.SerializeAsString(), b.SerializeAsString()) << "token " << i;
  }
  const auto bits = [](const auto& floats) {
    return std::vector<float>(floats.begin(), floats.end());
  };
  EXPECT_EQ(bits(actual.prompt_logprobs.logprobs()), bits(expected.prompt_logprobs.logprobs()));
  EXPECT_EQ(bits(actual.prompt_logprobs.top_logprobs()),
            bits(expected.prompt_logprobs.top_logprobs()));
}

// Bit for bit: alone or batched, in whatever chunks, blocks, threads and overlap.
TEST_F(ModelRunnerTest, ResultsDependOnTheSequenceAlone) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    std::vector<DrivenSequence> alone;
    const auto one_by_one = Open({.dtype = dtype, .max_num_batched_tokens = 512});
    for (DrivenSequence sequence : MixedSequences()) {
      sequence.first_step = 1;
      std::vector<DrivenSequence> single = {sequence};
      ASSERT_TRUE(one_by_one->Run(single).ok());
      alone.push_back(single[0]);
    }
    for (uint32_t budget : {8u, 17u, 64u}) {
      for (uint32_t block_size : {4u, 16u, 64u}) {
        for (int in_flight : {1, 2}) {
          SCOPED_TRACE(testing::Message() << dtype << ", budget " << budget << ", block size "
                                          << block_size << ", in flight " << in_flight);
          const auto driver = Open({.dtype = dtype,
                                    .cpu_threads = static_cast<uint32_t>(3 - in_flight),
                                    .max_num_batched_tokens = budget,
                                    .block_size = block_size,
                                    .num_blocks = 2048 / block_size,
                                    .steps_in_flight = in_flight});
          std::vector<DrivenSequence> batch = MixedSequences();
          ASSERT_TRUE(driver->Run(batch).ok());
          for (size_t i = 0; i < batch.size(); ++i) {
            SCOPED_TRACE(testing::Message() << "sequence " << i);
            ExpectSameResults(batch[i], alone[i]);
          }
        }
      }
    }
  }
}

// ---- Recorded steps.

TEST_F(ModelRunnerTest, RecordedStepsGiveTheSameResults) {
  const auto plain = Open();
  std::vector<DrivenSequence> expected = MixedSequences();
  ASSERT_TRUE(plain->Run(expected).ok());
  for (int in_flight : {1, 2}) {
    for (uint32_t budget : {3u, 64u}) {
      SCOPED_TRACE(testing::Message() << "budget " << budget << ", in flight " << in_flight);
      const auto driver =
          Open({.graphs = true, .max_num_batched_tokens = budget, .steps_in_flight = in_flight});
      std::vector<DrivenSequence> sequences = MixedSequences();
      ASSERT_TRUE(driver->Run(sequences).ok());
      for (size_t i = 0; i < sequences.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "sequence " << i);
        ExpectSameResults(sequences[i], expected[i]);
      }
      EXPECT_GT(driver->graph_backend().num_launches(), 10);
    }
  }
}

TEST_F(ModelRunnerTest, ASizeIsRecordedOnceWhenItComesForTheSecondTime) {
  const auto driver = Open({.graphs = true});
  std::vector<DrivenSequence> sequences = {
      {.prompt = {1, 2, 3}, .max_tokens = 8, .sampling = GreedySampling()}};
  // Loading measures one.
  const int num_graphs = driver->graph_backend().num_graphs();
  const int num_launches = driver->graph_backend().num_launches();
  EXPECT_EQ(num_graphs, 1);
  ASSERT_TRUE(driver->Run(sequences).ok());
  EXPECT_EQ(driver->graph_backend().num_graphs(), num_graphs + 1);
  // Of seven steps after the prompt's.
  EXPECT_EQ(driver->graph_backend().num_launches(), num_launches + 6);
}

TEST_F(ModelRunnerTest, StepsWithPromptsAreRecordedUpToABudget) {
  const auto driver = Open({.graphs = true, .max_num_batched_tokens = 512});
  const auto num_new_graphs = [&](size_t num_prompts, size_t prompt_size) {
    const int before = driver->graph_backend().num_graphs();
    for (uint32_t seed : {1u, 2u}) {
      std::vector<DrivenSequence> sequences;
      for (uint32_t i = 0; i < num_prompts; ++i) {
        sequences.push_back({.prompt = PseudoPrompt(10 * seed + i, prompt_size),
                             .max_tokens = 1,
                             .sampling = GreedySampling()});
      }
      EXPECT_TRUE(driver->Run(sequences).ok());
    }
    return driver->graph_backend().num_graphs() - before;
  };
  EXPECT_EQ(num_new_graphs(1, 30), 1);
  EXPECT_EQ(num_new_graphs(1, 31), 0);  // of the same size
  EXPECT_EQ(num_new_graphs(2, 120), 1);
  EXPECT_EQ(num_new_graphs(3, 100), 0);
}

TEST_F(ModelRunnerTest, IdleWorkSettlesChoicesAndRecordsAgain) {
  const auto driver = Open({.graphs = true});
  const std::vector<DrivenSequence> plain = {
      {.prompt = {1, 2, 3}, .max_tokens = 8, .sampling = GreedySampling()}};
  std::vector<DrivenSequence> before = plain, after = plain;
  const int num_graphs = driver->graph_backend().num_graphs();
  EXPECT_FALSE(*driver->executor().DoIdleWork());
  ASSERT_TRUE(driver->Run(before).ok());
  EXPECT_FALSE(*driver->executor().DoIdleWork());
  driver->graph_backend().num_guesses = 2;
  EXPECT_TRUE(*driver->executor().DoIdleWork());
  EXPECT_TRUE(*driver->executor().DoIdleWork());
  EXPECT_FALSE(*driver->executor().DoIdleWork());
  ASSERT_TRUE(driver->Run(after).ok());
  EXPECT_EQ(after[0].tokens, before[0].tokens);
  // The decode step's twice, and the prompt's, which came for the second time.
  EXPECT_EQ(driver->graph_backend().num_graphs(), num_graphs + 3);
}

// A preempted sequence comes back with what it had as known tokens.
TEST_F(ModelRunnerTest, GoesOnTheSameWayAfterARestart) {
  const auto driver = Open();
  DrivenSequence whole = {
      .prompt = PseudoPrompt(1, 20), .max_tokens = 16, .sampling = GreedySampling()};
  whole.sampling.set_temperature(1.0f);
  whole.sampling.set_seed(5);
  std::vector<DrivenSequence> sequences = {whole};
  ASSERT_TRUE(driver->Run(sequences).ok());
  DrivenSequence rest = whole;
  rest.prompt.insert(
      rest.prompt.end(), sequences[0].tokens.begin(), sequences[0].tokens.begin() + 6);
  rest.max_tokens = 10;
  std::vector<DrivenSequence> resumed = {rest};
  ASSERT_TRUE(driver->Run(resumed).ok());
  EXPECT_EQ(resumed[0].tokens,
            std::vector<uint32_t>(sequences[0].tokens.begin() + 6, sequences[0].tokens.end()));
}

TEST_F(ModelRunnerTest, ResetForgetsEverySlot) {
  const auto driver = Open();
  internal::v1::StepPlan plan;
  plan.set_step_id(1);
  internal::v1::NewSequence& sequence = *plan.add_new_sequences();
  sequence.add_token_ids(1);
  sequence.set_num_prompt_tokens(1);
  sequence.add_block_tables()->add_block_ids(0);
  *sequence.mutable_sampling() = GreedySampling();
  ASSERT_TRUE(driver->executor().Submit(plan).ok());
  ASSERT_TRUE(driver->executor().Reset().ok());
  EXPECT_TRUE(driver->executor().Submit(plan).ok());
}

// As a beam that takes another's place: it goes on from a copy of the block that its parent writes
// on in the same step. The parent has slot 0, blocks 3 and 5.
void ForkInTheMiddleOfABlock(RunnerDriver& driver, std::vector<uint32_t>* tokens) {
  const std::vector<uint32_t> prompt = PseudoPrompt(7, 6);
  const auto sampled = [&](uint64_t step_id, const internal::v1::StepPlan& plan) {
    ASSERT_TRUE(driver.executor().Submit(plan).ok());
    internal::v1::StepResult result;
    absl::StatusOr<bool> taken = false;
    while (taken.ok() && !*taken) taken = driver.executor().TakeResult(&result);
    ASSERT_TRUE(taken.ok()) << taken.status();
    ASSERT_EQ(result.step_id(), step_id);
    tokens->insert(tokens->end(), result.token_ids().begin(), result.token_ids().end());
  };
  internal::v1::StepPlan plan;
  const auto add = [&](uint32_t slot, const std::vector<uint32_t>& ids, uint32_t last_block) {
    internal::v1::NewSequence& sequence = *plan.add_new_sequences();
    sequence.set_slot(slot);
    for (const uint32_t id : ids) sequence.add_token_ids(id);
    sequence.set_num_prompt_tokens(6);
    for (const uint32_t block : {3u, last_block}) {
      if (sequence.block_tables_size() == 0) sequence.add_block_tables();
      sequence.mutable_block_tables(0)->add_block_ids(block);
    }
    *sequence.mutable_sampling() = GreedySampling();
    return &sequence;
  };
  const auto row = [&](uint32_t slot, uint32_t num_tokens) {
    plan.add_row_slots(slot);
    plan.add_row_num_tokens(num_tokens);
    plan.add_row_samples(1);
  };
  plan.set_step_id(1);
  add(0, prompt, 5);
  row(0, 6);
  sampled(1, plan);
  plan.Clear();
  plan.set_step_id(2);
  std::vector<uint32_t> forked = prompt;
  forked.push_back(11);
  internal::v1::NewSequence* const child = add(1, forked, 6);
  child->set_num_computed_tokens(6);
  child->set_copied_block(5);
  row(1, 1);
  row(0, 1);
  sampled(2, plan);
}

TEST_F(ModelRunnerTest, ASequenceGoesOnFromACopiedBlock) {
  for (const bool graphs : {false, true}) {
    const auto driver = Open({.graphs = graphs, .block_size = 4});
    std::vector<uint32_t> tokens;
    ForkInTheMiddleOfABlock(*driver, &tokens);
    ASSERT_EQ(tokens.size(), 3u);
    std::vector<DrivenSequence> alone = {
        {.prompt = PseudoPrompt(7, 6), .max_tokens = 2, .sampling = GreedySampling()},
        {.prompt = PseudoPrompt(7, 6), .max_tokens = 1, .sampling = GreedySampling()}};
    alone[1].prompt.push_back(11);
    ASSERT_TRUE(Open({.block_size = 4})->Run(alone).ok());
    EXPECT_THAT(tokens, ElementsAre(alone[0].tokens[0], alone[1].tokens[0], alone[0].tokens[1]));
  }
}

TEST_F(ModelRunnerTest, AnEmptyStepHasAnEmptyResult) {
  const auto driver = Open();
  internal::v1::StepPlan plan;
  plan.set_step_id(1);
  ASSERT_TRUE(driver->executor().Submit(plan).ok());
  internal::v1::StepResult result;
  ASSERT_TRUE(*driver->executor().TakeResult(&result));
  EXPECT_EQ(result.step_id(), 1u);
  EXPECT_EQ(result.token_ids_size(), 0);
}

TEST_F(ModelRunnerTest, ABrokenPlanIsAnInternalError) {
  const auto driver = Open();
  internal::v1::StepPlan plan;
  plan.set_step_id(7);
  EXPECT_EQ(driver->executor().Submit(plan).code(), absl::StatusCode::kInternal);
}

// ---- Log-probabilities.

TEST_F(ModelRunnerTest, PromptLogprobsEqualTheReferenceWhateverTheChunks) {
  const std::vector<uint32_t> prompt = PseudoPrompt(3, 50);
  const auto reference = ReferenceLogits(model_, prompt);
  // 16 rows of logits at once: 49 positions take several chunks in one step.
  for (uint32_t budget : {1u, 7u, 64u}) {
    const auto driver =
        Open({.max_num_seqs = 2, .max_num_batched_tokens = budget, .steps_in_flight = 2});
    DrivenSequence sequence = {.prompt = prompt, .max_tokens = 3, .sampling = GreedySampling()};
    sequence.sampling.set_num_prompt_logprobs(kVocab);
    sequence.sampling.set_num_logprobs(0);
    std::vector<DrivenSequence> sequences = {sequence, sequence};
    ASSERT_TRUE(driver->Run(sequences).ok());
    for (const DrivenSequence& done : sequences) {
      const internal::v1::PromptLogprobs& logprobs = done.prompt_logprobs;
      ASSERT_EQ(logprobs.logprobs_size(), 49);
      for (int p = 1; p < 50; ++p) {
        const std::vector<double> expected = LogSoftmax(reference[static_cast<size_t>(p) - 1]);
        const uint32_t token = prompt[static_cast<size_t>(p)];
        EXPECT_NEAR(logprobs.logprobs(p - 1), expected[token], 1e-4);
        const auto better = std::count_if(
            expected.begin(), expected.end(), [&](double v) { return v > expected[token]; });
        EXPECT_EQ(logprobs.ranks(p - 1), static_cast<uint32_t>(better) + 1);
        const int best = static_cast<int>(kVocab) * (p - 1);
        EXPECT_NEAR(
            logprobs.top_logprobs(best), *std::max_element(expected.begin(), expected.end()), 1e-4);
      }
      EXPECT_EQ(done.logprobs.size(), 3u);
      EXPECT_EQ(done.logprobs[0].top_ids_size(), 0);
      EXPECT_EQ(done.logprobs[0].rank(), 1u);
    }
  }
}

// As if each position of the prompt were the next to be sampled, whatever the chunks; min_tokens
// says nothing of a prompt.
TEST_F(ModelRunnerTest, ProcessedPromptLogprobsCountWhatIsBeforeThem) {
  std::vector<uint32_t> prompt = PseudoPrompt(3, 50);
  std::copy(prompt.begin(), prompt.begin() + 10, prompt.begin() + 30);
  const auto reference_logits = ReferenceLogits(model_, prompt);
  for (uint32_t budget : {1u, 7u, 64u}) {
    const auto driver =
        Open({.max_num_seqs = 2, .max_num_batched_tokens = budget, .steps_in_flight = 2});
    DrivenSequence sequence = {.prompt = prompt, .max_tokens = 3, .sampling = GreedySampling()};
    internal::v1::RowSampling& sampling = sequence.sampling;
    sampling.set_processed_logprobs(true);
    sampling.set_num_prompt_logprobs(kVocab);
    sampling.set_temperature(0.5f);
    sampling.set_repetition_penalty(1.5f);
    sampling.set_presence_penalty(1.0f);  // of the output alone
    sampling.add_bias_token_ids(5);
    sampling.add_bias_values(2.5f);
    for (uint32_t i : {0u, 1u}) {
      if (i == 0) sampling.add_bad_words();
      sampling.mutable_bad_words(0)->add_token_ids(prompt[20 + i]);
    }
    sampling.set_min_tokens(3);
    sampling.add_min_tokens_masked_ids(prompt[40]);
    DrivenSequence raw = sequence;
    raw.sampling.set_processed_logprobs(false);
    std::vector<DrivenSequence> sequences = {sequence, raw};
    ASSERT_TRUE(driver->Run(sequences).ok());
    const internal::v1::PromptLogprobs& logprobs = sequences[0].prompt_logprobs;
    ASSERT_EQ(logprobs.logprobs_size(), 49);
    for (int p = 1; p < 50; ++p) {
      SCOPED_TRACE(p);
      reference::SamplerRow row = {.temperature = 0.5, .repetition_penalty = 1.5};
      row.presence_penalty = 1.0;
      row.bias = {{5, 2.5}};
      for (int i = 0; i < p; ++i) {
        const auto token = static_cast<int32_t>(prompt[static_cast<size_t>(i)]);
        const bool is_new = std::none_of(row.penalties.begin(),
                                         row.penalties.end(),
                                         [&](const auto& entry) { return entry.first == token; });
        if (is_new) row.penalties.emplace_back(token, 0);
      }
      if (prompt[static_cast<size_t>(p) - 1] == prompt[20]) {
        row.masked = {static_cast<int32_t>(prompt[21])};
      }
      std::vector<double> processed =
          reference::ProcessedLogits(reference_logits[static_cast<size_t>(p) - 1], row);
      for (double& value : processed) value /= 0.5;
      const std::vector<double> expected = reference::LogSoftmax(processed);
      const uint32_t token = prompt[static_cast<size_t>(p)];
      if (std::isinf(expected[token])) {
        EXPECT_TRUE(std::isinf(logprobs.logprobs(p - 1)));
      } else {
        EXPECT_NEAR(logprobs.logprobs(p - 1), expected[token], 1e-3);
      }
      const int best = static_cast<int>(kVocab) * (p - 1);
      EXPECT_NEAR(
          logprobs.top_logprobs(best), *std::max_element(expected.begin(), expected.end()), 1e-3);
      const std::vector<double> plain = LogSoftmax(reference_logits[static_cast<size_t>(p) - 1]);
      EXPECT_NEAR(sequences[1].prompt_logprobs.logprobs(p - 1), plain[token], 1e-4);
    }
    EXPECT_TRUE(std::isinf(logprobs.logprobs(20)));
  }
}

// ---- Sampling that needs the history.

TEST_F(ModelRunnerTest, BadWordsAreNeverCompleted) {
  const auto driver = Open();
  DrivenSequence plain = {
      .prompt = PseudoPrompt(4, 9), .max_tokens = 12, .sampling = GreedySampling()};
  std::vector<DrivenSequence> before = {plain};
  ASSERT_TRUE(driver->Run(before).ok());
  const std::vector<uint32_t>& tokens = before[0].tokens;
  // The first three tokens as one word, the fifth as another.
  for (uint32_t i : {0u, 1u, 2u}) {
    if (i == 0) plain.sampling.add_bad_words();
    plain.sampling.mutable_bad_words(0)->add_token_ids(tokens[i]);
  }
  std::vector<DrivenSequence> after = {plain};
  ASSERT_TRUE(driver->Run(after).ok());
  EXPECT_EQ(after[0].tokens[0], tokens[0]);
  EXPECT_EQ(after[0].tokens[1], tokens[1]);
  EXPECT_NE(after[0].tokens[2], tokens[2]);

  plain.sampling.clear_bad_words();
  plain.sampling.add_bad_words()->add_token_ids(tokens[0]);
  std::vector<DrivenSequence> single = {plain};
  ASSERT_TRUE(driver->Run(single).ok());
  EXPECT_THAT(single[0].tokens, testing::Not(testing::Contains(tokens[0])));
}

TEST_F(ModelRunnerTest, MinTokensMasksUntilReached) {
  const auto driver = Open();
  DrivenSequence plain = {
      .prompt = PseudoPrompt(5, 9), .max_tokens = 6, .sampling = GreedySampling()};
  std::vector<DrivenSequence> before = {plain};
  ASSERT_TRUE(driver->Run(before).ok());
  const uint32_t first = before[0].tokens[0];
  plain.sampling.set_min_tokens(1);
  plain.sampling.add_min_tokens_masked_ids(first);
  std::vector<DrivenSequence> masked = {plain};
  ASSERT_TRUE(driver->Run(masked).ok());
  EXPECT_NE(masked[0].tokens[0], first);
  // One token on, the mask is off: forced there by the prompt, the same id can come again.
  plain.prompt.push_back(first);
  plain.sampling.set_min_tokens(0);
  std::vector<DrivenSequence> free = {plain};
  ASSERT_TRUE(driver->Run(free).ok());
  EXPECT_EQ(free[0].tokens[0], before[0].tokens[1]);
}

TEST_F(ModelRunnerTest, PenaltiesCountWhatWasSampledInSteps) {
  const auto driver = Open();
  DrivenSequence plain = {.prompt = {1, 2, 3}, .max_tokens = 40, .sampling = GreedySampling()};
  // So strong that no token can come twice, and none of the prompt for its presence there is not
  // counted.
  plain.sampling.set_frequency_penalty(2.0f);
  plain.sampling.set_presence_penalty(2.0f);
  plain.sampling.set_repetition_penalty(10.0f);
  std::vector<DrivenSequence> sequences = {plain};
  ASSERT_TRUE(driver->Run(sequences).ok());
  const std::set<uint32_t> distinct(sequences[0].tokens.begin(), sequences[0].tokens.end());
  EXPECT_EQ(distinct.size(), 40u);
}

TEST_F(ModelRunnerTest, OnlyAllowedIdsAreSampled) {
  const auto driver = Open();
  DrivenSequence plain = {.prompt = {1, 2, 3}, .max_tokens = 20, .sampling = GreedySampling()};
  plain.sampling.set_temperature(2.0f);
  for (uint32_t id : {7u, 9u, 11u}) plain.sampling.add_allowed_token_ids(id);
  std::vector<DrivenSequence> sequences = {plain, plain};
  sequences[1].sampling.set_seed(3);
  ASSERT_TRUE(driver->Run(sequences).ok());
  for (const DrivenSequence& sequence : sequences) {
    EXPECT_THAT(sequence.tokens, testing::Each(testing::AnyOf(7u, 9u, 11u)));
  }
}

// ---- B081: rows of the head that only pad it.

TEST(ModelRunnerPaddingTest, B081_PaddedIdsAreNeverSampled) {
  constexpr uint32_t kKnownIds = 88;
  fixtures::ModelFiles model = RandomLlama();
  fixtures::Random random(9);
  std::vector<float>& head = model.tensor("lm_head.weight").values;
  const std::vector<float> noise = random.Normal(static_cast<int64_t>(head.size()), 20.0);
  for (size_t i = kKnownIds * 48; i < head.size(); ++i) head[i] = noise[i];
  const fixtures::TemporaryDir dir = fixtures::WriteModelDir(model);
  const auto sample = [&](uint32_t num_known_ids) {
    const auto driver =
        RunnerDriver::Make({.model_dir = dir.path(), .num_known_ids = num_known_ids});
    EXPECT_TRUE(driver.ok()) << driver.status();
    std::vector<DrivenSequence> sequences;
    for (uint32_t i = 0; i < 80; ++i) {
      DrivenSequence sequence = {.prompt = {i}, .max_tokens = 125, .sampling = GreedySampling()};
      sequence.sampling.set_temperature(2.0f);
      sequence.sampling.set_seed(i);
      sequences.push_back(sequence);
    }
    EXPECT_TRUE((*driver)->Run(sequences).ok());
    int64_t num_padded = 0;
    for (const DrivenSequence& sequence : sequences) {
      EXPECT_EQ(sequence.tokens.size(), 125u);
      num_padded += std::count_if(sequence.tokens.begin(),
                                  sequence.tokens.end(),
                                  [](uint32_t token) { return token >= kKnownIds; });
    }
    return num_padded;
  };
  EXPECT_EQ(sample(kKnownIds), 0);
  EXPECT_GT(sample(0), 0);  // the noise would win
}

// ---- B032: logits that are not finite.

TEST(ModelRunnerNanTest, B032_NonFiniteLogitsFailTheirSequenceOnly) {
  constexpr uint32_t kBadToken = 40;
  fixtures::ModelFiles model = RandomLlama();
  const fixtures::TemporaryDir healthy_dir = fixtures::WriteModelDir(model);
  for (size_t i = 0; i < 48; ++i) {
    model.tensor("model.embed_tokens.weight").values[kBadToken * 48 + i] =
        std::numeric_limits<float>::quiet_NaN();
  }
  const fixtures::TemporaryDir dir = fixtures::WriteModelDir(model);
  for (float temperature : {0.0f, 1.0f}) {
    std::vector<DrivenSequence> sequences;
    for (uint32_t i = 0; i < 8; ++i) {
      DrivenSequence sequence = {
          .prompt = PseudoPrompt(i, 10), .max_tokens = 6, .sampling = GreedySampling()};
      std::replace(sequence.prompt.begin(), sequence.prompt.end(), kBadToken, 0u);
      sequence.sampling.set_temperature(temperature);
      sequence.sampling.set_seed(i);
      sequence.sampling.set_num_logprobs(5);
      // Their own tokens must not lead them there.
      sequence.sampling.add_bad_words()->add_token_ids(kBadToken);
      sequences.push_back(sequence);
    }
    std::vector<DrivenSequence> expected = sequences;
    const auto healthy = RunnerDriver::Make({.model_dir = healthy_dir.path()});
    ASSERT_TRUE(healthy.ok()) << healthy.status();
    ASSERT_TRUE((*healthy)->Run(expected).ok());

    sequences[3].prompt[4] = kBadToken;
    // Few blocks: those of the failed sequence, full of NaN, are used again.
    const auto driver =
        RunnerDriver::Make({.model_dir = dir.path(), .block_size = 4, .num_blocks = 34});
    ASSERT_TRUE(driver.ok()) << driver.status();
    ASSERT_TRUE((*driver)->Run(sequences).ok());
    EXPECT_TRUE(sequences[3].failed);
    EXPECT_TRUE(sequences[3].tokens.empty());
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (i == 3) continue;
      EXPECT_FALSE(sequences[i].failed);
      EXPECT_EQ(sequences[i].tokens, expected[i].tokens);
    }
    std::vector<DrivenSequence> again = {sequences[2]};
    again[0].tokens.clear();
    again[0].logprobs.clear();
    ASSERT_TRUE((*driver)->Run(again).ok());
    EXPECT_EQ(again[0].tokens, expected[2].tokens);
  }
}

}  // namespace
}  // namespace pagoda::engine
