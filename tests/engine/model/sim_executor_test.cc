#include "engine/model/sim_executor.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/executor_factory.h"
#include "tests/engine/model/model_dir.h"
#include "tests/engine/model/runner_driver.h"

namespace pagoda::engine {
namespace {

using internal::v1::NewSequence;
using internal::v1::OpenWorker;
using internal::v1::StepPlan;
using internal::v1::StepResult;

class FakeClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 1000;
};

class SimExecutorTest : public testing::Test {
 protected:
  SimExecutorTest() {
    nlohmann::json config = LlamaConfigJson();
    config["eos_token_id"] = {17, 20};
    dir_.Write("config.json", config);
    open_.mutable_config()->mutable_model()->set_path(dir_.path());
    internal::v1::EngineConfig& engine = *open_.mutable_config()->mutable_engine();
    engine.set_max_num_seqs(4);
    engine.set_max_num_batched_tokens(64);
    engine.set_block_size(16);
    open_.mutable_config()->mutable_worker()->set_device("sim");
  }

  std::unique_ptr<SimExecutor> MakeSim() {
    auto sim = std::make_unique<SimExecutor>(
        SimTime{.clock = &clock_,
                .sleep_until_ns = [this](int64_t deadline) { clock_.now_ns = deadline; }});
    EXPECT_TRUE(sim->Open(open_).ok());
    internal::v1::LoadModel load;
    load.set_num_kv_blocks(32);
    EXPECT_TRUE(sim->Load(load, nullptr).ok());
    return sim;
  }

  // Runs `prompt` in steps of at most `chunk` tokens and then for `count` tokens.
  std::vector<uint32_t> Generate(SimExecutor& sim,
                                 const std::vector<uint32_t>& prompt,
                                 uint32_t chunk,
                                 int count) {
    StepPlan plan;
    NewSequence& sequence = *plan.add_new_sequences();
    for (uint32_t token : prompt) sequence.add_token_ids(token);
    sequence.set_num_prompt_tokens(static_cast<uint32_t>(prompt.size()));
    for (uint32_t block = 0; block < 8; ++block) {
      if (block == 0) sequence.add_block_tables();
      sequence.mutable_block_tables(0)->add_block_ids(block);
    }
    std::vector<uint32_t> tokens;
    uint32_t computed = 0;
    while (static_cast<int>(tokens.size()) < count) {
      const uint32_t known = static_cast<uint32_t>(prompt.size() + tokens.size());
      const uint32_t now = std::min(chunk, known - computed);
      computed += now;
      plan.set_step_id(++step_id_);
      plan.add_row_slots(0);
      plan.add_row_num_tokens(now);
      plan.add_row_samples(computed == known ? 1 : 0);
      EXPECT_TRUE(sim.Submit(plan).ok());
      StepResult result;
      EXPECT_TRUE(*sim.TakeResult(&result));
      EXPECT_EQ(result.step_id(), step_id_);
      for (uint32_t token : result.token_ids()) tokens.push_back(token);
      plan.Clear();
    }
    EXPECT_TRUE(sim.Reset().ok());
    step_id_ = 0;
    return tokens;
  }

  ModelDir dir_;
  OpenWorker open_;
  FakeClock clock_;
  uint64_t step_id_ = 0;
};

TEST_F(SimExecutorTest, TokensAreAFunctionOfTheSequence) {
  const auto sim = MakeSim();
  const std::vector<uint32_t> prompt = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<uint32_t> tokens = Generate(*sim, prompt, 64, 20);
  EXPECT_EQ(Generate(*sim, prompt, 3, 20), tokens);
  EXPECT_EQ(Generate(*MakeSim(), prompt, 2, 20), tokens);
  // A restart with what was generated goes on the same way.
  std::vector<uint32_t> longer = prompt;
  longer.insert(longer.end(), tokens.begin(), tokens.begin() + 5);
  EXPECT_EQ(Generate(*sim, longer, 64, 15),
            std::vector<uint32_t>(tokens.begin() + 5, tokens.end()));
  EXPECT_NE(Generate(*sim, {1, 2, 3}, 64, 20), tokens);
}

TEST_F(SimExecutorTest, TokensAreOrdinary) {
  const auto sim = MakeSim();
  for (uint32_t token : Generate(*sim, {3}, 64, 100)) {
    EXPECT_GE(token, 16u);
    EXPECT_LT(token, 48u);
    EXPECT_NE(token, 17u);
    EXPECT_NE(token, 20u);
  }
}

TEST_F(SimExecutorTest, StepsTakeTheirTimeOneAfterTheOther) {
  internal::v1::SimConfig& sim_config = *open_.mutable_config()->mutable_worker()->mutable_sim();
  sim_config.set_base_us(100);
  sim_config.set_per_token_us(10);
  sim_config.set_per_context_token_ns(1000);
  const auto sim = MakeSim();
  StepPlan plan;
  plan.set_step_id(1);
  NewSequence& sequence = *plan.add_new_sequences();
  for (uint32_t token : {1, 2, 3, 4}) sequence.add_token_ids(token);
  sequence.set_num_prompt_tokens(4);
  sequence.set_num_computed_tokens(1);
  sequence.set_copied_block(1);
  sequence.add_block_tables()->add_block_ids(0);
  plan.add_row_slots(0);
  plan.add_row_num_tokens(3);
  plan.add_row_samples(1);
  ASSERT_TRUE(sim->Submit(plan).ok());
  plan.Clear();
  plan.set_step_id(2);
  plan.add_row_slots(0);
  plan.add_row_num_tokens(1);
  plan.add_row_samples(1);
  ASSERT_TRUE(sim->Submit(plan).ok());

  StepResult result;
  ASSERT_TRUE(*sim->TakeResult(&result));
  EXPECT_EQ(result.start_ns(), 1000u);
  EXPECT_EQ(result.end_ns(), 1000u + 100'000 + 30'000 + 4'000);
  EXPECT_EQ(clock_.now_ns, static_cast<int64_t>(result.end_ns()));
  const uint64_t first_end_ns = result.end_ns();
  ASSERT_TRUE(*sim->TakeResult(&result));
  EXPECT_EQ(result.start_ns(), first_end_ns);
  EXPECT_EQ(result.end_ns(), first_end_ns + 100'000 + 10'000 + 5'000);
  EXPECT_FALSE(*sim->TakeResult(&result));
}

TEST_F(SimExecutorTest, AnswersLogprobs) {
  const auto sim = MakeSim();
  StepPlan plan;
  plan.set_step_id(1);
  NewSequence& sequence = *plan.add_new_sequences();
  for (uint32_t token : {1, 2, 3, 4}) sequence.add_token_ids(token);
  sequence.set_num_prompt_tokens(4);
  sequence.add_block_tables()->add_block_ids(0);
  sequence.mutable_sampling()->set_num_logprobs(2);
  sequence.mutable_sampling()->set_num_prompt_logprobs(1);
  plan.add_row_slots(0);
  plan.add_row_num_tokens(4);
  plan.add_row_samples(1);
  ASSERT_TRUE(sim->Submit(plan).ok());
  StepResult result;
  ASSERT_TRUE(*sim->TakeResult(&result));
  ASSERT_EQ(result.logprobs_size(), 1);
  EXPECT_EQ(result.logprobs(0).top_ids_size(), 2);
  EXPECT_EQ(result.logprobs(0).top_ids(0), result.token_ids(0));
  ASSERT_EQ(result.prompt_logprobs_size(), 1);
  EXPECT_EQ(result.prompt_logprobs(0).first_position(), 1u);
  EXPECT_EQ(result.prompt_logprobs(0).logprobs_size(), 3);
  EXPECT_EQ(result.prompt_logprobs(0).top_ids(2), 4u);
}

TEST_F(SimExecutorTest, TheFactoryKnowsIt) {
  EXPECT_TRUE(MakeStepExecutor(open_).ok());
  open_.mutable_config()->mutable_worker()->set_device("tpu");
  EXPECT_EQ(MakeStepExecutor(open_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SimExecutorTest, DraftsChangeNothing) {
  const auto run = [this](std::vector<DrivenSequence> sequences) {
    const auto driver = RunnerDriver::Make({.model_dir = dir_.path(), .device = "sim"});
    EXPECT_TRUE(driver.ok()) << driver.status();
    EXPECT_TRUE((*driver)->Run(sequences).ok());
    return sequences[0];
  };
  DrivenSequence sequence = {.prompt = {5, 6, 7}, .max_tokens = 30, .sampling = GreedySampling()};
  const DrivenSequence plain = run({sequence});
  sequence.draft = [&plain](const std::vector<uint32_t>& tokens) {
    std::vector<uint32_t> draft;
    for (size_t i = tokens.size() - 3; i < plain.tokens.size() && draft.size() < 4; ++i)
      draft.push_back(i % 6 == 0 ? 1 : plain.tokens[i]);
    return draft;
  };
  const DrivenSequence drafted = run({sequence});
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_LT(drafted.num_steps, plain.num_steps / 2);
}

}  // namespace
}  // namespace pagoda::engine
