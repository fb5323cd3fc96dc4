// The reference checkpoints, run through step plans: shared/conformance/README.md says what must
// hold.
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model/golden.h"
#include "tests/engine/model/model_dir.h"
#include "tests/engine/model/runner_driver.h"

namespace pagoda::engine {
namespace {

using nlohmann::json;

constexpr uint32_t kVocab = 512;

struct Tolerance {
  double relative_error = 0;
  double greedy_margin = 0;
  // Of the three best at every position: fewer and smaller numbers than all of one.
  double top_relative_error = 0;
};

Tolerance ToleranceOf(const std::string& name, const std::string& dtype) {
  if (dtype == "float32") return {1e-4, 0.05, 1e-4};
  // In bfloat16 roundings choose the other of two experts that are nearly equal, and with it
  // another output. No further from float32 than transformers in bfloat16 is for these two models.
  if (name == "mixtral" || name == "qwen3_moe") return {6.2e-2, 0.34, 0.101};
  return {2e-2, 0.3, 3e-2};
}

DrivenSequence WithAllLogprobs(const std::vector<uint32_t>& prompt) {
  DrivenSequence sequence = {.prompt = prompt, .sampling = GreedySampling()};
  sequence.sampling.set_num_logprobs(kVocab);
  sequence.sampling.set_num_prompt_logprobs(3);
  return sequence;
}

// The prompts of the golden file, all at once.
void CheckCases(RunnerDriver& driver, const json& golden, const Tolerance& tolerance) {
  std::vector<DrivenSequence> sequences;
  for (const json& golden_case : golden["cases"]) {
    sequences.push_back(WithAllLogprobs(golden_case["prompt"]));
  }
  ASSERT_TRUE(driver.Run(sequences).ok());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const json& golden_case = golden["cases"][i];
    SCOPED_TRACE(testing::Message() << "prompt of " << sequences[i].prompt.size() << " tokens");
    std::vector<double> expected = golden_case["last_logits"];
    const double logsumexp = golden_case["logsumexp"].back();
    for (double& value : expected) value -= logsumexp;
    ASSERT_EQ(sequences[i].logprobs.size(), 1u);
    EXPECT_LE(RelativeError(VectorOf(sequences[i].logprobs[0], kVocab), expected),
              tolerance.relative_error);

    const internal::v1::PromptLogprobs& prompt = sequences[i].prompt_logprobs;
    const size_t num_positions = sequences[i].prompt.size() - 1;
    ASSERT_EQ(static_cast<size_t>(prompt.logprobs_size()), num_positions);
    ASSERT_EQ(static_cast<size_t>(prompt.top_logprobs_size()), 3 * num_positions);
    if (num_positions == 0) continue;
    std::vector<double> top, expected_top;
    for (size_t p = 0; p < num_positions; ++p) {
      for (size_t k = 0; k < 3; ++k) {
        top.push_back(prompt.top_logprobs(static_cast<int>(3 * p + k)));
        expected_top.push_back(golden_case["top3_logits"][p][k].get<double>() -
                               golden_case["logsumexp"][p].get<double>());
      }
    }
    EXPECT_LE(RelativeError(top, expected_top), tolerance.top_relative_error);
  }
}

// Teacher-forced: the prompt and the reference's tokens as one prompt, the best id at each
// position.
void CheckGreedy(RunnerDriver& driver, const json& golden, const Tolerance& tolerance) {
  std::vector<uint32_t> forced = golden["cases"][2]["prompt"];
  const size_t prompt_size = forced.size();
  const std::vector<uint32_t> tokens = golden["greedy"]["tokens"];
  forced.insert(forced.end(), tokens.begin(), tokens.end());
  std::vector<DrivenSequence> sequences = {WithAllLogprobs(forced)};
  ASSERT_TRUE(driver.Run(sequences).ok());
  int num_checked = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (golden["greedy"]["margins"][i].get<double>() <= tolerance.greedy_margin) continue;
    ++num_checked;
    // Entry j of prompt log-probabilities belongs to position j + 1.
    const int entry = static_cast<int>(prompt_size + i) - 1;
    EXPECT_EQ(sequences[0].prompt_logprobs.top_ids(3 * entry), tokens[i]) << "token " << i;
  }
  EXPECT_GT(num_checked, 0);
}

using ModelAndDType = std::tuple<const char*, const char*>;
class ConformanceTest : public testing::TestWithParam<ModelAndDType> {};

TEST_P(ConformanceTest, AgreesWithTheReference) {
  const auto [name, dtype] = GetParam();
  const std::string dir = ConformanceModelDir(name);
  if (dir.empty()) GTEST_SKIP() << "no " << name << " in PAGODA_CONFORMANCE_DIR";
  const json golden = ReadGolden(dir);
  for (uint32_t budget : {8u, 17u, 512u}) {
    for (uint32_t block_size : {4u, 16u, 64u}) {
      SCOPED_TRACE(testing::Message() << "budget " << budget << ", block size " << block_size);
      const auto driver = RunnerDriver::Make({.model_dir = dir,
                                              .dtype = dtype,
                                              .max_num_seqs = 8,
                                              .max_num_batched_tokens = budget,
                                              .block_size = block_size,
                                              .num_blocks = 1024 / block_size});
      ASSERT_TRUE(driver.ok()) << driver.status();
      CheckCases(**driver, golden, ToleranceOf(name, dtype));
      CheckGreedy(**driver, golden, ToleranceOf(name, dtype));
    }
  }
}

std::vector<ModelAndDType> EveryModelAndDType() {
  std::vector<ModelAndDType> all;
  for (const char* model : kConformanceModels) {
    for (const char* dtype : {"float32", "bfloat16"}) all.emplace_back(model, dtype);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models,
                         ConformanceTest,
                         testing::ValuesIn(EveryModelAndDType()),
                         [](const testing::TestParamInfo<ModelAndDType>& param) {
                           return std::string(std::get<0>(param.param)) + "_" +
                                  std::get<1>(param.param);
                         });

// ---- The default model.

TEST(DefaultModelTest, AgreesWithItsGoldenFile) {
  const std::string dir = PAGODA_SOURCE_DIR "/deploy/models/fable-7m";
  const json golden = ReadGolden(dir);
  const auto driver = RunnerDriver::Make({.model_dir = dir, .dtype = "float32"});
  ASSERT_TRUE(driver.ok()) << driver.status();
  for (const json& golden_case : golden["cases"]) {
    SCOPED_TRACE(golden_case["name"].get<std::string>());
    DrivenSequence sequence = {.prompt = golden_case["ids"], .sampling = GreedySampling()};
    sequence.sampling.set_num_logprobs(10);
    std::vector<uint32_t> forced = golden_case["ids"];
    const size_t prompt_size = forced.size();
    const std::vector<uint32_t> tokens = golden_case["greedy_ids"];
    forced.insert(forced.end(), tokens.begin(), tokens.end());
    DrivenSequence teacher = {.prompt = forced, .sampling = GreedySampling()};
    teacher.sampling.set_num_prompt_logprobs(1);
    std::vector<DrivenSequence> sequences = {sequence, teacher};
    ASSERT_TRUE((*driver)->Run(sequences).ok());

    const internal::v1::TokenLogprobs& top = sequences[0].logprobs[0];
    for (int k = 0; k < 10; ++k) {
      const double expected = golden_case["top10"][static_cast<size_t>(k)][1].get<double>() -
                              golden_case["top10"][0][1].get<double>();
      EXPECT_NEAR(top.top_logprobs(k) - top.top_logprobs(0), expected, 1e-3) << k;
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (golden_case["greedy_margins"][i].get<double>() <= 0.01) continue;
      const int entry = static_cast<int>(prompt_size + i) - 1;
      EXPECT_EQ(sequences[1].prompt_logprobs.top_ids(entry), tokens[i]) << "token " << i;
    }
  }
}

}  // namespace
}  // namespace pagoda::engine
