// A model that ranks share, here threads of one process, gives what one rank gives.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/status_macros.h"
#include "parallel/shm_group.h"
#include "tests/engine/model/golden.h"
#include "tests/engine/model/model_dir.h"
#include "tests/engine/model/random_llama.h"
#include "tests/engine/model/runner_driver.h"

namespace pagoda::engine {
namespace {

using Sequences = std::vector<DrivenSequence>;

absl::Status RunOnRank(const DriverOptions& options,
                       std::unique_ptr<parallel::ProcessGroup> group,
                       Sequences& sequences) {
  PAGODA_ASSIGN_OR_RETURN(const auto driver, RunnerDriver::Make(options, std::move(group)));
  return driver->Run(sequences);
}

// What every rank gives.
std::vector<Sequences> RunOnRanks(DriverOptions options,
                                  uint32_t num_ranks,
                                  const Sequences& sequences) {
  std::vector<Sequences> results(num_ranks, sequences);
  auto groups = parallel::MakeThreadGroups(static_cast<int>(num_ranks));
  EXPECT_TRUE(groups.ok()) << groups.status();
  options.cpu_threads = 1;
  options.tensor_ranks = num_ranks;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    options.tensor_rank = rank;
    threads.emplace_back(
        [options, group = std::move((*groups)[rank]), &result = results[rank]]() mutable {
          const absl::Status status = RunOnRank(options, std::move(group), result);
          EXPECT_TRUE(status.ok()) << status;
        });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

Sequences RunAlone(DriverOptions options, Sequences sequences) {
  options.cpu_threads = 1;
  const absl::Status status = RunOnRank(options, nullptr, sequences);
  EXPECT_TRUE(status.ok()) << status;
  return sequences;
}

// Prompts of several lengths: greedy and drawn, with the log-probabilities of all tokens.
Sequences SomeSequences(uint32_t vocab_size) {
  Sequences sequences;
  for (const uint32_t length : {1u, 7u, 30u}) {
    DrivenSequence sequence = {.max_tokens = 12, .sampling = GreedySampling()};
    for (uint32_t i = 0; i < length; ++i) {
      sequence.prompt.push_back((i * 31 + length * 7) % vocab_size);
    }
    sequence.sampling.set_num_logprobs(vocab_size);
    if (length == 7) {
      sequence.sampling.set_temperature(0.8f);
      sequence.sampling.set_seed(5);
    }
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

// The same tokens and nearly the same numbers as from one rank, and the same bits on every rank.
void CheckRanks(const DriverOptions& options, uint32_t num_ranks, uint32_t vocab_size) {
  SCOPED_TRACE(testing::Message() << num_ranks << " ranks of " << options.model_dir);
  const Sequences alone = RunAlone(options, SomeSequences(vocab_size));
  const std::vector<Sequences> ranks = RunOnRanks(options, num_ranks, SomeSequences(vocab_size));
  for (size_t i = 0; i < alone.size(); ++i) {
    const DrivenSequence& first = ranks[0][i];
    EXPECT_EQ(first.tokens, alone[i].tokens);
    ASSERT_EQ(first.logprobs.size(), alone[i].logprobs.size());
    for (size_t t = 0; t < first.logprobs.size(); ++t) {
      EXPECT_LE(RelativeError(VectorOf(first.logprobs[t], vocab_size),
                              VectorOf(alone[i].logprobs[t], vocab_size)),
                1e-5);
    }
    for (const Sequences& rank : ranks) {
      EXPECT_EQ(rank[i].tokens, first.tokens);
      ASSERT_EQ(rank[i].logprobs.size(), first.logprobs.size());
      for (size_t t = 0; t < first.logprobs.size(); ++t) {
        EXPECT_EQ(rank[i].logprobs[t].SerializeAsString(), first.logprobs[t].SerializeAsString());
      }
    }
  }
}

// Two ranks have a KV head each, four share them by twos.
TEST(TensorRanksTest, GiveWhatOneGives) {
  const fixtures::TemporaryDir dir = fixtures::WriteModelDir(RandomLlama());
  for (const uint32_t num_ranks : {1u, 2u, 4u}) {
    CheckRanks({.model_dir = dir.path()}, num_ranks, 96);
  }
}

TEST(TensorRanksTest, GiveTheSameInSmallSteps) {
  const fixtures::TemporaryDir dir = fixtures::WriteModelDir(RandomLlama());
  CheckRanks({.model_dir = dir.path(), .max_num_batched_tokens = 3, .block_size = 4}, 2, 96);
}

// 5 ids over 4 ranks: 2, 2, 1 and none.
TEST(TensorRanksTest, B080_VocabulariesThatDoNotDivideArePadded) {
  for (const int64_t vocab_size : {97, 5}) {
    for (const bool tied : {false, true}) {
      fixtures::ModelFiles model = RandomLlama(3, vocab_size);
      if (tied) {
        model.config["tie_word_embeddings"] = true;
        model.tensors.erase(std::remove_if(model.tensors.begin(),
                                           model.tensors.end(),
                                           [](const fixtures::Tensor& tensor) {
                                             return tensor.name == "lm_head.weight";
                                           }),
                            model.tensors.end());
      }
      const fixtures::TemporaryDir dir = fixtures::WriteModelDir(model);
      CheckRanks({.model_dir = dir.path()}, 4, static_cast<uint32_t>(vocab_size));
    }
  }
}

// Fused and transposed tensors, biases, experts, norms of heads and of outputs, slopes of ALiBi.
TEST(TensorRanksTest, ReferenceModelsOfEveryKind) {
  const std::pair<const char*, uint32_t> kModels[] = {{"bloom", 3},
                                                      {"gemma2", 4},
                                                      {"gpt2", 2},
                                                      {"granite", 2},
                                                      {"llama_bias", 4},
                                                      {"llama_mha_tied", 4},
                                                      {"mixtral", 4},
                                                      {"mpt", 2},
                                                      {"phi3_longrope", 2},
                                                      {"qwen2", 2},
                                                      {"qwen3_moe", 2},
                                                      {"starcoder2", 2}};
  for (const auto& [name, num_ranks] : kModels) {
    const std::string dir = ConformanceModelDir(name);
    if (!dir.empty()) CheckRanks({.model_dir = dir}, num_ranks, 512);
  }
}

// Steps are recorded, sums are part of the recordings, and norms come with the sums.
TEST(TensorRanksTest, RecordedStepsWithFusedSums) {
  const fixtures::TemporaryDir dir = fixtures::WriteModelDir(RandomLlama(3, 97));
  for (const uint32_t num_ranks : {2u, 4u}) {
    CheckRanks({.model_dir = dir.path(), .graphs = true}, num_ranks, 97);
    CheckRanks(
        {.model_dir = dir.path(), .graphs = true, .max_num_batched_tokens = 3}, num_ranks, 97);
  }
}

// Ranks draw the numbers of their parts, so that together they have the model that one has.
TEST(TensorRanksTest, DummyWeightsAreThoseOfOneRank) {
  const fixtures::TemporaryDir dir = fixtures::WriteModelDir(RandomLlama());
  for (const uint32_t num_ranks : {2u, 4u}) {
    CheckRanks({.model_dir = dir.path(), .dummy = true}, num_ranks, 96);
  }
  const std::pair<const char*, uint32_t> kModels[] = {
      {"bloom", 3}, {"gpt2", 2}, {"mixtral", 2}, {"qwen2", 2}};
  for (const auto& [name, num_ranks] : kModels) {
    const std::string reference = ConformanceModelDir(name);
    if (!reference.empty()) CheckRanks({.model_dir = reference, .dummy = true}, num_ranks, 512);
  }
}

// Weights in bfloat16 are the same on all ranks; activations are float32.
TEST(TensorRanksTest, WeightsInBFloat16) {
  const fixtures::TemporaryDir dir = fixtures::WriteModelDir(RandomLlama());
  for (const uint32_t num_ranks : {2u, 4u}) {
    CheckRanks({.model_dir = dir.path(), .dtype = "bfloat16", .cpu_isa = "scalar"}, num_ranks, 96);
  }
}

TEST(TensorRanksTest, AWorkerOutsideOfItsGroupIsRefused) {
  const fixtures::TemporaryDir dir = fixtures::WriteModelDir(RandomLlama());
  const auto driver = RunnerDriver::Make({.model_dir = dir.path(), .tensor_ranks = 2});
  EXPECT_THAT(std::string(driver.status().message()),
              testing::HasSubstr("rank 0 of 2 tensor ranks, in a group as rank 0 of 1"));
}

}  // namespace
}  // namespace pagoda::engine
