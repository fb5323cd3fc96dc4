#include "engine/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model/model_dir.h"

namespace pagoda::engine {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<ModelConfig> Load(const json& config) {
  ModelDir dir;
  dir.Write("config.json", config);
  return LoadModelConfig(dir.path());
}

// Loads the small Llama with one field changed; null removes it.
absl::StatusOr<ModelConfig> LoadWith(const std::string& field, const json& value) {
  json config = LlamaConfigJson();
  config[field] = value;
  return Load(config);
}

void ExpectRefused(const absl::StatusOr<ModelConfig>& config,
                   const std::vector<std::string>& parts) {
  ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << config.status();
  const std::string message(config.status().message());
  EXPECT_THAT(message, HasSubstr("config.json"));
  for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
}

TEST(ModelConfigTest, ReadsASmallLlama) {
  const absl::StatusOr<ModelConfig> config = Load(LlamaConfigJson());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->head_dim, 8);  // 32 / 4
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->dtype, DType::kFloat32);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_FALSE(config->sliding_window.has_value());
  EXPECT_EQ(config->rope.kind, RopeConfig::Kind::kDefault);
  EXPECT_EQ(config->rope.theta, 10000.0);
}

TEST(ModelConfigTest, HeadDimMayDifferFromTheQuotient) {
  const absl::StatusOr<ModelConfig> config = LoadWith("head_dim", 64);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 64);
}

TEST(ModelConfigTest, WithoutKeyValueHeadsEveryHeadHasItsOwn) {
  const absl::StatusOr<ModelConfig> config = LoadWith("num_key_value_heads", nullptr);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_kv_heads, 4);
}

TEST(ModelConfigTest, BiasesOfLlama) {
  json json_config = LlamaConfigJson();
  json_config["attention_bias"] = true;
  json_config["mlp_bias"] = true;
  const absl::StatusOr<ModelConfig> config = Load(json_config);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->qkv_bias && config->o_bias && config->mlp_bias);
}

TEST(ModelConfigTest, EosIsANumberOrAList) {
  EXPECT_THAT(LoadWith("eos_token_id", 5)->eos_token_ids, ElementsAre(5));
  EXPECT_THAT(LoadWith("eos_token_id", {5, 9})->eos_token_ids, ElementsAre(5, 9));
  ExpectRefused(LoadWith("eos_token_id", 64), {"eos_token_id is 64", "from 0 to 63"});
  ExpectRefused(LoadWith("eos_token_id", {1, "x"}), {"eos_token_id", "list"});
}

TEST(ModelConfigTest, BothSpellingsOfDType) {
  EXPECT_EQ(LoadWith("torch_dtype", "bfloat16")->dtype, DType::kBFloat16);
  json config = LlamaConfigJson();
  config.erase("torch_dtype");
  EXPECT_EQ(Load(config)->dtype, DType::kFloat32);
  config["dtype"] = "float16";
  EXPECT_EQ(Load(config)->dtype, DType::kFloat16);
  config["torch_dtype"] = "bfloat16";
  ExpectRefused(Load(config), {"torch_dtype is \"bfloat16\"", "float16"});
  ExpectRefused(LoadWith("torch_dtype", "float8_e4m3fn"), {"float8_e4m3fn", "bfloat16"});
  ExpectRefused(LoadWith("torch_dtype", "int32"), {"int32"});
}

TEST(ModelConfigTest, MistralHasAWindow) {
  json json_config = LlamaConfigJson();
  json_config["architectures"] = {"MistralForCausalLM"};
  json_config["sliding_window"] = 32;
  absl::StatusOr<ModelConfig> config = Load(json_config);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->sliding_window, 32);
  json_config["sliding_window"] = nullptr;
  EXPECT_FALSE(Load(json_config)->sliding_window.has_value());
  json_config["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_TRUE(Load(json_config).ok());
  json_config["layer_types"] = {"full_attention", "sliding_attention"};
  ExpectRefused(Load(json_config), {"layer_types", "full_attention"});
  json_config.erase("layer_types");
  json_config.erase("num_key_value_heads");
  ExpectRefused(Load(json_config), {"num_key_value_heads is missing"});
}

TEST(ModelConfigTest, LlamaHasNoWindow) {
  ExpectRefused(LoadWith("sliding_window", 32), {"sliding_window is 32"});
}

TEST(ModelConfigTest, RefusesWhatChangesTheArithmetic) {
  ExpectRefused(LoadWith("hidden_act", "relu2"), {"hidden_act is \"relu2\"", "silu"});
  ExpectRefused(LoadWith("architectures", {"MambaForCausalLM"}),
                {"architectures", "MambaForCausalLM", "LlamaForCausalLM, MistralForCausalLM"});
  ExpectRefused(LoadWith("architectures", nullptr), {"architectures", "LlamaForCausalLM"});
  ExpectRefused(LoadWith("quantization_config", {{"quant_method", "fp8"}}),
                {"quantization_config", "fp8"});
  ExpectRefused(LoadWith("auto_map", {{"AutoModel", "x.py"}}), {"auto_map"});
  ExpectRefused(LoadWith("partial_rotary_factor", 0.5), {"partial_rotary_factor is 0.5"});
  ExpectRefused(LoadWith("logit_scale", 0.5), {"logit_scale is 0.5", "does not know"});
  ExpectRefused(LoadWith("use_qk_norm", false), {"use_qk_norm is false"});
}

TEST(ModelConfigTest, AcceptsHarmlessFieldsNullAndPrivateNames) {
  json config = LlamaConfigJson();
  config["initializer_range"] = 0.02;
  config["pretraining_tp"] = 1;
  config["transformers_version"] = "4.44.0";
  config["logit_scale"] = nullptr;
  config["_name_or_path"] = "org/model";
  config["quantization_config"] = nullptr;
  EXPECT_TRUE(Load(config).ok()) << Load(config).status();
}

TEST(ModelConfigTest, RefusesBadNumbers) {
  ExpectRefused(LoadWith("hidden_size", 0), {"hidden_size is 0", "from 1"});
  ExpectRefused(LoadWith("hidden_size", -32), {"hidden_size is -32"});
  ExpectRefused(LoadWith("hidden_size", "32"), {"hidden_size is \"32\""});
  ExpectRefused(LoadWith("hidden_size", 1ull << 40), {"hidden_size"});
  ExpectRefused(LoadWith("hidden_size", 32.5), {"hidden_size is 32.5"});
  ExpectRefused(LoadWith("num_hidden_layers", nullptr), {"num_hidden_layers is missing"});
  // Weights of so many layers took seconds to list.
  ExpectRefused(LoadWith("num_hidden_layers", 65536), {"num_hidden_layers", "65536", "4096"});
  ExpectRefused(LoadWith("num_attention_heads", 5), {"head_dim", "hidden_size 32"});
  ExpectRefused(LoadWith("num_key_value_heads", 3), {"num_key_value_heads is 3", "divisor"});
  ExpectRefused(LoadWith("num_key_value_heads", 8), {"num_key_value_heads is 8"});
  ExpectRefused(LoadWith("head_dim", 7), {"head_dim is 7", "even"});
  ExpectRefused(LoadWith("rms_norm_eps", nullptr), {"rms_norm_eps is missing"});
  ExpectRefused(LoadWith("tie_word_embeddings", "yes"), {"tie_word_embeddings"});
}

// Each size is one that a model may have; their product was more than 64 bits.
TEST(ModelConfigTest, RefusesMoreParametersThanCanBeCounted) {
  json config = LlamaConfigJson();
  config["num_hidden_layers"] = 4096;
  config["hidden_size"] = 1 << 24;
  config["num_attention_heads"] = config["num_key_value_heads"] = 1 << 16;
  config["head_dim"] = 2458;
  ExpectRefused(Load(config), {"parameters", "expected at most 1e+15"});
}

TEST(ModelConfigTest, RefusesBrokenFiles) {
  ModelDir dir;
  EXPECT_EQ(LoadModelConfig(dir.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadModelConfig(dir.File("nowhere")).status().code(), absl::StatusCode::kNotFound);
  for (const char* content :
       {"", "{", "[1]", "null", "{\"a\": 1, \"a\": 2}", "{\"a\": \"\xff\"}", "{\"a\": 1} x"}) {
    dir.Write("config.json", absl::string_view(content));
    ExpectRefused(LoadModelConfig(dir.path()), {});
  }
  dir.Write("config.json", absl::string_view(std::string(100000, '[')));
  ExpectRefused(LoadModelConfig(dir.path()), {});
}

// ---- Rotary embedding: B082.

json RopeSpelling(int spelling, const std::string& kind, const json& keys) {
  json config = LlamaConfigJson();
  json inner = keys;
  if (spelling == 0) {
    config["rope_theta"] = 500000.0;
    return config;
  }
  inner[spelling == 1 ? "type" : "rope_type"] = kind;
  if (spelling == 3) {
    inner["rope_theta"] = 500000.0;
    config["rope_parameters"] = inner;
  } else {
    config["rope_theta"] = 500000.0;
    config["rope_scaling"] = inner;
  }
  return config;
}

TEST(ModelConfigTest, B082_FourSpellingsOfRopeMeanTheSame) {
  const json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  for (int spelling = 0; spelling < 4; ++spelling) {
    const absl::StatusOr<ModelConfig> plain = Load(RopeSpelling(spelling, "default", {}));
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(plain->rope.theta, 500000.0);
    EXPECT_EQ(plain->rope.kind, RopeConfig::Kind::kDefault);
    if (spelling == 0) continue;
    const absl::StatusOr<ModelConfig> linear =
        Load(RopeSpelling(spelling, "linear", {{"factor", 4.0}}));
    ASSERT_TRUE(linear.ok()) << linear.status();
    EXPECT_EQ(linear->rope.kind, RopeConfig::Kind::kLinear);
    EXPECT_EQ(linear->rope.factor, 4.0);
    EXPECT_EQ(linear->rope.theta, 500000.0);
    const absl::StatusOr<ModelConfig> scaled = Load(RopeSpelling(spelling, "llama3", llama3));
    ASSERT_TRUE(scaled.ok()) << scaled.status();
    EXPECT_EQ(scaled->rope.kind, RopeConfig::Kind::kLlama3);
    EXPECT_EQ(scaled->rope.original_max_position_embeddings, 64);
    EXPECT_EQ(scaled->rope.high_freq_factor, 4.0);
  }
}

TEST(ModelConfigTest, B082_UnknownRopeIsRefusedByName) {
  for (int spelling = 1; spelling < 4; ++spelling) {
    ExpectRefused(Load(RopeSpelling(spelling, "foo", {{"factor", 4.0}})),
                  {"foo", "one of \"default\", \"linear\", \"dynamic\", \"llama3\""});
    ExpectRefused(Load(RopeSpelling(spelling, "dynamic", {})), {"factor is missing"});
    ExpectRefused(Load(RopeSpelling(spelling, "yarn", {})), {"factor is missing"});
    ExpectRefused(Load(RopeSpelling(spelling, "yarn", {{"factor", 4.0}, {"beta_fast", "x"}})),
                  {"beta_fast is \"x\""});
    ExpectRefused(Load(RopeSpelling(spelling, "longrope", {{"factor", 4.0}})),
                  {"short_factor is missing", "4 numbers"});
    ExpectRefused(Load(RopeSpelling(spelling, "linear", {})), {"factor is missing"});
    ExpectRefused(Load(RopeSpelling(spelling, "llama3", {{"factor", 8.0}})),
                  {"low_freq_factor is missing"});
    ExpectRefused(Load(RopeSpelling(spelling, "linear", {{"factor", 4.0}, {"mscale", 1.0}})),
                  {"mscale"});
    ExpectRefused(Load(RopeSpelling(spelling, "linear", {{"factor", "4"}})), {"factor is \"4\""});
  }
  ExpectRefused(LoadWith("rope_scaling", {{"factor", 4.0}}), {"rope_scaling.rope_type is missing"});
  ExpectRefused(LoadWith("rope_scaling", "linear"), {"rope_scaling", "object"});
  ExpectRefused(LoadWith("rope_parameters", {{"rope_type", "default"}}),
                {"rope_parameters.rope_theta is missing"});
  ExpectRefused(LoadWith("rope_theta", 0), {"rope_theta is 0"});
}

TEST(ModelConfigTest, B082_SpellingsThatDisagreeAreRefused) {
  json config = LlamaConfigJson();
  config["rope_theta"] = 10000.0;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  ExpectRefused(Load(config), {"rope_theta"});
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  EXPECT_TRUE(Load(config).ok());
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  ExpectRefused(Load(config), {"rope_scaling"});
  config["rope_scaling"] = {{"type", "linear"}, {"rope_type", "default"}};
  ExpectRefused(Load(config), {"type"});
}

// ---- Sizes.

TEST(ModelSizeTest, CountsEveryMatrixOnce) {
  ModelConfig config = *Load(LlamaConfigJson());
  const uint64_t layer = 32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 48;
  const uint64_t vectors = 2 * 2 * 32 + 32;
  EXPECT_EQ(NumParameters(config), 2 * layer + 2 * 64 * 32 + vectors);
  EXPECT_EQ(WeightBytes(config, DType::kBFloat16), 2 * (2 * layer + 2 * 64 * 32) + 4 * vectors);
  config.tie_word_embeddings = true;
  EXPECT_EQ(NumParameters(config), 2 * layer + 64 * 32 + vectors);
  EXPECT_EQ(KvBytesPerToken(config, DType::kBFloat16), 2u * 2 * 2 * 8 * 2);
}

TEST(ModelSizeTest, DefaultModelHasTheParametersThatItsPageSays) {
  const absl::StatusOr<ModelConfig> config =
      LoadModelConfig(PAGODA_SOURCE_DIR "/deploy/models/fable-7m");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(NumParameters(*config), 6951168u);
}

TEST(ModelConfigTest, LoadsEveryConformanceModelOfAKnownArchitecture) {
  for (const char* name : kConformanceModels) {
    const std::string dir = ConformanceModelDir(name);
    if (dir.empty()) continue;
    const absl::StatusOr<ModelConfig> config = LoadModelConfig(dir);
    EXPECT_TRUE(config.ok()) << name << ": " << config.status();
  }
}

// ---- generation_config.json.

TEST(GenerationConfigTest, AbsentFileMeansAbsentFields) {
  ModelDir dir;
  const absl::StatusOr<GenerationConfig> config = LoadGenerationConfig(dir.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->temperature.has_value());
  EXPECT_TRUE(config->eos_token_ids.empty());
}

TEST(GenerationConfigTest, ReadsDefaults) {
  ModelDir dir;
  dir.Write("generation_config.json",
            json({{"do_sample", true},
                  {"temperature", 0.8},
                  {"top_p", 0.95},
                  {"top_k", -1},
                  {"eos_token_id", {5, 9}},
                  {"max_length", 4096}}));
  const absl::StatusOr<GenerationConfig> config = LoadGenerationConfig(dir.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->do_sample, true);
  EXPECT_EQ(config->temperature, 0.8f);
  EXPECT_EQ(config->top_k, 0);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(5, 9));
}

TEST(GenerationConfigTest, RefusesBadValues) {
  for (const json& bad : {json({{"temperature", -1}}),
                          json({{"top_p", 0}}),
                          json({{"top_p", 2}}),
                          json({{"top_k", 1.5}}),
                          json({{"eos_token_id", -1}})}) {
    ModelDir dir;
    dir.Write("generation_config.json", bad);
    const absl::StatusOr<GenerationConfig> config = LoadGenerationConfig(dir.path());
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace pagoda::engine
