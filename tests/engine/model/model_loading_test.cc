// Checkpoints that agree with their config.json, and those that do not.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model/golden.h"
#include "tests/engine/model/random_llama.h"
#include "tests/engine/model/reference_llama.h"
#include "tests/engine/model/runner_driver.h"

namespace pagoda::engine {
namespace {

using fixtures::ModelFiles;
using fixtures::Tensor;
using nlohmann::json;
using testing::HasSubstr;

const std::vector<uint32_t> kPrompt = {3, 14, 15, 92, 65, 35, 89, 79, 3, 2};

absl::StatusOr<std::unique_ptr<RunnerDriver>> Open(const ModelFiles& model,
                                                   DriverOptions options = {}) {
  const fixtures::TemporaryDir dir = fixtures::WriteModelDir(model);
  options.model_dir = dir.path();
  return RunnerDriver::Make(options);
}

// Log-probabilities of every id after each prefix of the prompt.
std::vector<std::vector<double>> AllLogprobs(const ModelFiles& model,
                                             const std::vector<uint32_t>& prompt,
                                             DriverOptions options = {}) {
  const auto driver = Open(model, options);
  EXPECT_TRUE(driver.ok()) << driver.status();
  if (!driver.ok()) return {};
  std::vector<DrivenSequence> sequences;
  for (size_t size = 1; size <= prompt.size(); ++size) {
    DrivenSequence sequence = {.prompt = {prompt.begin(), prompt.begin() + static_cast<int>(size)},
                               .sampling = GreedySampling()};
    sequence.sampling.set_num_logprobs(model.config["vocab_size"].get<uint32_t>());
    sequences.push_back(sequence);
  }
  EXPECT_TRUE((*driver)->Run(sequences).ok());
  std::vector<std::vector<double>> result;
  for (const DrivenSequence& sequence : sequences) {
    result.push_back(VectorOf(sequence.logprobs[0], model.config["vocab_size"].get<size_t>()));
  }
  return result;
}

void ExpectEqualsReference(const ModelFiles& model,
                           const std::vector<uint32_t>& prompt,
                           DriverOptions options = {}) {
  const auto actual = AllLogprobs(model, prompt, options);
  const auto expected = ReferenceLogits(model, prompt);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t p = 0; p < expected.size(); ++p) {
    EXPECT_LE(RelativeError(actual[p], LogSoftmax(expected[p])), 1e-5) << "position " << p;
  }
}

void ExpectRefused(const ModelFiles& model, const std::vector<std::string>& parts) {
  const auto driver = Open(model);
  ASSERT_FALSE(driver.ok());
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(driver.status().message()), HasSubstr(part));
  }
}

void RemoveTensor(ModelFiles& model, const std::string& name) {
  std::erase_if(model.tensors, [&](const Tensor& tensor) { return tensor.name == name; });
}

TEST(ModelLoadingTest, EqualsTheReference) { ExpectEqualsReference(RandomLlama(), kPrompt); }

TEST(ModelLoadingTest, EqualsTheReferenceWithBiases) {
  ModelFiles model = RandomLlama();
  model.config["attention_bias"] = true;
  model.config["mlp_bias"] = true;
  fixtures::Random random(7);
  std::vector<Tensor> biases;
  for (const Tensor& tensor : model.tensors) {
    const size_t end = tensor.name.find("_proj.weight");
    if (end == std::string::npos) continue;
    biases.push_back({.name = tensor.name.substr(0, end) + "_proj.bias",
                      .shape = {tensor.shape[0]},
                      .values = random.Normal(tensor.shape[0], 0.3)});
  }
  model.tensors.insert(model.tensors.end(), biases.begin(), biases.end());
  ExpectEqualsReference(model, kPrompt);
}

// ---- B082: one meaning, four spellings.

TEST(ModelLoadingTest, B082_SpellingsOfRopeGiveEqualLogits) {
  const json eight_factors = {2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5};
  const std::pair<const char*, json> kinds[] = {
      {"linear", {{"factor", 8.0}}},
      // The context is 16 times the original one.
      {"dynamic", {{"factor", 4.0}, {"original_max_position_embeddings", 16}}},
      {"yarn", {{"factor", 8.0}, {"original_max_position_embeddings", 16}}},
      {"llama3",
       {{"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", 16}}},
      {"longrope",
       {{"short_factor", eight_factors},
        {"long_factor", eight_factors},
        {"original_max_position_embeddings", 16}}}};
  const auto plain = AllLogprobs(RandomLlama(), kPrompt);
  for (const auto& [kind, scaling] : kinds) {
    SCOPED_TRACE(kind);
    std::vector<std::vector<std::vector<double>>> results;
    for (const std::string spelling : {"type", "rope_type", "rope_parameters"}) {
      ModelFiles model = RandomLlama();
      model.config.erase("rope_theta");
      json rope = scaling;
      rope[spelling == "type" ? "type" : "rope_type"] = kind;
      if (spelling == "rope_parameters") {
        rope["rope_theta"] = 500.0;
        model.config["rope_parameters"] = rope;
      } else {
        model.config["rope_theta"] = 500.0;
        model.config["rope_scaling"] = rope;
      }
      results.push_back(AllLogprobs(model, kPrompt));
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
    EXPECT_NE(results[0], plain);
  }
}

// ---- B083: tied embeddings.

TEST(ModelLoadingTest, B083_TiedAndAbsentUsesTheEmbedding) {
  ModelFiles model = RandomLlama();
  model.config["tie_word_embeddings"] = true;
  RemoveTensor(model, "lm_head.weight");
  ExpectEqualsReference(model, kPrompt);
}

TEST(ModelLoadingTest, B083_UntiedAndPresentUsesTheHead) {
  ModelFiles model = RandomLlama();
  model.config["tie_word_embeddings"] = false;
  ExpectEqualsReference(model, kPrompt);
}

TEST(ModelLoadingTest, B083_UntiedAndAbsentIsRefused) {
  ModelFiles model = RandomLlama();
  RemoveTensor(model, "lm_head.weight");
  ExpectRefused(model, {"lm_head.weight", "tie_word_embeddings"});
}

TEST(ModelLoadingTest, B083_TiedPresentAndEqualIsAccepted) {
  ModelFiles model = RandomLlama();
  model.config["tie_word_embeddings"] = true;
  model.tensor("lm_head.weight").values = model.tensor("model.embed_tokens.weight").values;
  ExpectEqualsReference(model, kPrompt);
}

TEST(ModelLoadingTest, B083_TiedPresentAndDifferentIsRefused) {
  ModelFiles model = RandomLlama();
  model.config["tie_word_embeddings"] = true;
  ExpectRefused(model, {"lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"});
}

// ---- B086: the window's width.

TEST(ModelLoadingTest, B086_SlidingWindowSeesExactlyItsWidth) {
  ModelFiles model = RandomLlama();
  model.config["architectures"] = {"MistralForCausalLM"};
  model.config.erase("attention_bias");
  model.config.erase("mlp_bias");
  model.config["sliding_window"] = 4;
  for (size_t size : {3u, 4u, 5u, 9u}) {
    const std::vector<uint32_t> prompt(kPrompt.begin(), kPrompt.begin() + static_cast<int>(size));
    for (uint32_t budget : {2u, 3u, 64u}) {
      ExpectEqualsReference(model, prompt, {.max_num_batched_tokens = budget, .block_size = 4});
    }
  }
}

TEST(ModelLoadingTest, B086_DecodeSeesTheSameWindow) {
  ModelFiles model = RandomLlama();
  model.config["architectures"] = {"MistralForCausalLM"};
  model.config["sliding_window"] = 4;
  const auto driver = Open(model, {.block_size = 4});
  ASSERT_TRUE(driver.ok()) << driver.status();
  DrivenSequence sequence = {.prompt = {5, 6, 7}, .max_tokens = 8, .sampling = GreedySampling()};
  sequence.sampling.set_num_logprobs(96);
  std::vector<DrivenSequence> sequences = {sequence};
  ASSERT_TRUE((*driver)->Run(sequences).ok());
  std::vector<uint32_t> all = sequences[0].prompt;
  all.insert(all.end(), sequences[0].tokens.begin(), sequences[0].tokens.end());
  const auto expected = ReferenceLogits(model, all);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_LE(RelativeError(VectorOf(sequences[0].logprobs[i], 96), LogSoftmax(expected[2 + i])),
              1e-5)
        << i;
  }
}

// ---- Tensors that do not fit the model.

TEST(ModelLoadingTest, B092_MissingTensorsAreNamed) {
  ModelFiles model = RandomLlama();
  RemoveTensor(model, "model.layers.1.mlp.up_proj.weight");
  RemoveTensor(model, "model.norm.weight");
  ExpectRefused(model, {"model.layers.1.mlp.up_proj.weight", "model.norm.weight"});
}

TEST(ModelLoadingTest, WrongShapesAreNamed) {
  ModelFiles model = RandomLlama();
  Tensor& tensor = model.tensor("model.layers.0.self_attn.k_proj.weight");
  tensor.shape = {16, 96};  // as many values as [32, 48]
  ExpectRefused(model, {"model.layers.0.self_attn.k_proj.weight", "[16, 96]", "[32, 48]"});
}

TEST(ModelLoadingTest, UnusedTensorsAreNamed) {
  ModelFiles model = RandomLlama();
  model.tensors.push_back({.name = "model.layers.0.self_attn.q_norm.weight",
                           .shape = {16},
                           .values = std::vector<float>(16, 1.0f)});
  ExpectRefused(model, {"model.layers.0.self_attn.q_norm.weight", "does not use"});
  RemoveTensor(model, "model.layers.0.self_attn.q_norm.weight");
  model.config["num_hidden_layers"] = 1;
  ExpectRefused(model, {"model.layers.1.", "does not use"});
}

TEST(ModelLoadingTest, DerivedTablesAreIgnored) {
  ModelFiles model = RandomLlama();
  model.tensors.push_back({.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
                           .shape = {8},
                           .values = std::vector<float>(8, 1.0f)});
  EXPECT_TRUE(Open(model).ok()) << Open(model).status();
}

TEST(ModelLoadingTest, WrongElementTypesAreNamed) {
  ModelFiles model = RandomLlama();
  std::string file = fixtures::SafetensorsFile(model.tensors, DType::kFloat32);
  const size_t at = file.find("\"F32\"");
  ASSERT_NE(at, std::string::npos);
  file.replace(at, 5, "\"I32\"");
  model.other_files["model.safetensors"] = file;
  ExpectRefused(model, {"I32", "expected F32, F16 or BF16"});
}

TEST(ModelLoadingTest, EveryElementTypeIsRead) {
  ModelFiles model = RandomLlama();
  // Values that all three types hold exactly.
  for (Tensor& tensor : model.tensors) {
    for (float& value : tensor.values) value = BFloat16::FromFloat(value).ToFloat();
    for (float& value : tensor.values) value = Float16::FromFloat(value).ToFloat();
    for (float& value : tensor.values) value = BFloat16::FromFloat(value).ToFloat();
  }
  const auto expected = AllLogprobs(model, kPrompt);
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    model.dtype = dtype;
    EXPECT_EQ(AllLogprobs(model, kPrompt, {.dtype = "float32"}), expected) << DTypeName(dtype);
  }
}

TEST(ModelLoadingTest, Float16IsFloat32OnACpuUnlessAskedFor) {
  ModelFiles model = RandomLlama();
  model.dtype = DType::kFloat16;
  model.config["torch_dtype"] = "float16";
  EXPECT_TRUE(Open(model, {.dtype = "auto"}).ok());
  const auto refused = Open(model, {.dtype = "float16"});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("float16"));
}

// ---- Dummy weights.

TEST(ModelLoadingTest, DummyWeightsComeFromTheirSeedAlone) {
  ModelFiles model = RandomLlama();
  model.tensors.clear();
  const auto first = AllLogprobs(model, kPrompt, {.dummy = true});
  EXPECT_EQ(AllLogprobs(model, kPrompt, {.dummy = true}), first);
  EXPECT_NE(first[0], first[1]);
  EXPECT_NE(*std::min_element(first[0].begin(), first[0].end()),
            *std::max_element(first[0].begin(), first[0].end()));
}

}  // namespace
}  // namespace pagoda::engine
