// What config.json of each architecture means, in the spellings that checkpoints have.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/architecture.h"
#include "engine/model/model_config.h"
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

// The small Llama's fields with others on top; null removes one.
json With(const char* architecture, const json& changes) {
  json config = LlamaConfigJson();
  config["architectures"] = {architecture};
  for (const auto& [name, value] : changes.items()) config[name] = value;
  return config;
}

void ExpectRefused(const absl::StatusOr<ModelConfig>& config,
                   const std::vector<std::string>& parts) {
  ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << config.status();
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(part));
  }
}

std::vector<std::string> TensorNames(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const WeightSpec& spec : FindArchitecture(config.architecture)->weights(config)) {
    for (const WeightPart& part : spec.parts) names.push_back(part.tensor);
  }
  return names;
}

TEST(ArchitectureConfigTest, Qwen2HasBiasesAndAWindowInLaterLayers) {
  absl::StatusOr<ModelConfig> config = Load(
      With("Qwen2ForCausalLM",
           {{"use_sliding_window", false}, {"sliding_window", 4096}, {"max_window_layers", 1}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->o_bias);
  EXPECT_FALSE(config->HasWindow(1));
  config =
      Load(With("Qwen2ForCausalLM",
                {{"use_sliding_window", true}, {"sliding_window", 32}, {"max_window_layers", 1}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->HasWindow(0));
  EXPECT_TRUE(config->HasWindow(1));
  ExpectRefused(
      Load(With("Qwen2ForCausalLM", {{"dual_chunk_attention_config", {{"chunk_size", 8}}}})),
      {"dual_chunk_attention_config"});
  ExpectRefused(
      Load(With("Qwen2ForCausalLM", {{"layer_types", {"full_attention", "sliding_attention"}}})),
      {"layer_types", "use_sliding_window"});
  ExpectRefused(Load(With("Qwen2ForCausalLM", {{"use_mrope", true}})), {"use_mrope is true"});
}

TEST(ArchitectureConfigTest, Qwen3HeadsAre128WideUnlessItSaysOtherwise) {
  const absl::StatusOr<ModelConfig> config = Load(With("Qwen3ForCausalLM", {}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(Load(With("Qwen3ForCausalLM", {{"head_dim", 64}}))->head_dim, 64);
  EXPECT_THAT(TensorNames(*config), testing::Contains("model.layers.1.self_attn.q_norm.weight"));
}

TEST(ArchitectureConfigTest, Qwen3MoeSaysWhichLayersAreDense) {
  json json_config = With("Qwen3MoeForCausalLM",
                          {{"num_hidden_layers", 4},
                           {"num_experts", 8},
                           {"num_experts_per_tok", 2},
                           {"moe_intermediate_size", 16},
                           {"norm_topk_prob", true},
                           {"decoder_sparse_step", 2},
                           {"mlp_only_layers", {3}}});
  const absl::StatusOr<ModelConfig> config = Load(json_config);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->experts->dense_layers, ElementsAre(true, false, true, true));
  EXPECT_TRUE(config->experts->normalise);
  const std::vector<std::string> names = TensorNames(*config);
  EXPECT_THAT(names, testing::Contains("model.layers.1.mlp.experts.7.down_proj.weight"));
  EXPECT_THAT(names, testing::Contains("model.layers.3.mlp.down_proj.weight"));
  // Embedding, head and final norm; four layers of two norms, attention, q and k norms.
  const uint64_t attention = 2 * 32 + 32 * (32 + 16 + 16) + 32 * 32 + 2 * 8;
  const uint64_t experts = 8 * 32 + 8 * 3 * 32 * 16;
  EXPECT_EQ(NumParameters(*config), 2u * 64 * 32 + 32 + 4 * attention + 3 * 3 * 32 * 48 + experts);
  json_config["num_experts_per_tok"] = 9;
  ExpectRefused(Load(json_config), {"num_experts_per_tok is 9", "to 8"});
}

TEST(ArchitectureConfigTest, MixtralRoutesByItsLocalExperts) {
  const absl::StatusOr<ModelConfig> config = Load(With("MixtralForCausalLM",
                                                       {{"num_local_experts", 8},
                                                        {"num_experts_per_tok", 2},
                                                        {"router_jitter_noise", 0.1},
                                                        {"router_aux_loss_coef", 0.02}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->experts->intermediate_size, 48);
  EXPECT_EQ(config->rope.theta, 1e6);
  EXPECT_THAT(TensorNames(*config),
              testing::Contains("model.layers.0.block_sparse_moe.experts.3.w2.weight"));
  ExpectRefused(Load(With("MixtralForCausalLM", {{"num_experts_per_tok", 2}})),
                {"num_local_experts is missing"});
}

TEST(ArchitectureConfigTest, GraniteMultipliers) {
  const absl::StatusOr<ModelConfig> config = Load(With("GraniteForCausalLM",
                                                       {{"embedding_multiplier", 12.0},
                                                        {"attention_multiplier", 0.015625},
                                                        {"residual_multiplier", 0.22},
                                                        {"logits_scaling", 8.0}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->embedding_scale, 12.0f);
  EXPECT_EQ(config->attention_scale, 0.015625f);
  EXPECT_EQ(config->residual_scale, 0.22f);
  EXPECT_EQ(config->logit_scale, 0.125f);
  ExpectRefused(Load(With("GraniteForCausalLM", {{"logits_scaling", 0}})), {"logits_scaling is 0"});
  ExpectRefused(Load(With("LlamaForCausalLM", {{"residual_multiplier", 0.22}})),
                {"residual_multiplier is 0.22"});
}

TEST(ArchitectureConfigTest, Phi3LongRopeInBothSpellings) {
  const json factors = {1.0, 1.5, 2.0, 2.5};
  const json old_spelling =
      With("Phi3ForCausalLM",
           {{"max_position_embeddings", 128},
            {"original_max_position_embeddings", 64},
            {"rope_scaling", {{"type", "su"}, {"short_factor", factors}, {"long_factor", factors}}},
            {"auto_map", {{"AutoConfig", "configuration_phi3.Phi3Config"}}},
            {"sliding_window", 2047}});
  const absl::StatusOr<ModelConfig> before = Load(old_spelling);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(before->rope.kind, RopeConfig::Kind::kLongRope);
  EXPECT_NEAR(
      before->rope.attention_factor, std::sqrt(1.0 + std::log(2.0) / std::log(64.0)), 1e-12);
  EXPECT_EQ(before->sliding_window, 2047);
  json new_spelling = old_spelling;
  new_spelling.erase("rope_scaling");
  new_spelling["rope_parameters"] = {{"rope_type", "longrope"},
                                     {"rope_theta", 10000.0},
                                     {"original_max_position_embeddings", 64},
                                     {"short_factor", factors},
                                     {"long_factor", factors}};
  const absl::StatusOr<ModelConfig> after = Load(new_spelling);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_TRUE(after->rope == before->rope);
  json wrong = old_spelling;
  wrong["rope_scaling"]["long_factor"] = {1.0, 2.0};
  ExpectRefused(Load(wrong), {"long_factor", "4 numbers"});
  wrong = old_spelling;
  wrong.erase("original_max_position_embeddings");
  ExpectRefused(Load(wrong), {"original_max_position_embeddings"});
  wrong = old_spelling;
  wrong["rope_scaling"]["short_mscale"] = 1.1;
  ExpectRefused(Load(wrong), {"short_mscale"});
}

TEST(ArchitectureConfigTest, Phi3RotatesAPartOfAHead) {
  const absl::StatusOr<ModelConfig> outer =
      Load(With("Phi3ForCausalLM", {{"partial_rotary_factor", 0.75}}));
  ASSERT_TRUE(outer.ok()) << outer.status();
  EXPECT_EQ(outer->rotary_dim(), 6);
  const absl::StatusOr<ModelConfig> inner = Load(With(
      "Phi3ForCausalLM",
      {{"rope_parameters",
        {{"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.75}}}}));
  ASSERT_TRUE(inner.ok()) << inner.status();
  EXPECT_EQ(inner->rotary_dim(), 6);
  ExpectRefused(Load(With("Phi3ForCausalLM", {{"partial_rotary_factor", 0.4}})),
                {"partial_rotary_factor is 0.4", "even"});
}

TEST(ArchitectureConfigTest, Gemma2AlternatesItsWindow) {
  const json fields = {{"hidden_act", "gelu_pytorch_tanh"},
                       {"hidden_activation", "gelu_pytorch_tanh"},
                       {"head_dim", 16},
                       {"sliding_window", 32},
                       {"query_pre_attn_scalar", 64},
                       {"attn_logit_softcapping", 50.0},
                       {"final_logit_softcapping", 30.0},
                       {"cache_implementation", "hybrid"}};
  const absl::StatusOr<ModelConfig> config = Load(With("Gemma2ForCausalLM", fields));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->HasWindow(0));
  EXPECT_FALSE(config->HasWindow(1));
  EXPECT_EQ(config->attention_scale, 0.125f);
  EXPECT_EQ(config->attention_soft_cap, 50.0f);
  EXPECT_EQ(config->logit_soft_cap, 30.0f);
  EXPECT_EQ(config->norm_weight_offset, 1.0f);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->embedding_scale, std::sqrt(32.0f));
  EXPECT_EQ(config->activation, kernels::Activation::kGeluTanh);
}

// As transformers 4.50, 4.55 and 5.0 write the same model.
TEST(ArchitectureConfigTest, Gemma3InThreeSpellings) {
  json first = With("Gemma3ForCausalLM",
                    {{"hidden_act", nullptr},
                     {"hidden_activation", "gelu_pytorch_tanh"},
                     {"num_hidden_layers", 3},
                     {"head_dim", 16},
                     {"sliding_window", 32},
                     {"sliding_window_pattern", 2},
                     {"rope_theta", 1000000.0},
                     {"rope_local_base_freq", 10000.0},
                     {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  json second = first;
  second.erase("sliding_window_pattern");
  second["_sliding_window_pattern"] = 6;
  second["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  json third = second;
  for (const char* name : {"rope_theta", "rope_local_base_freq", "rope_scaling"}) third.erase(name);
  third["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1000000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}};
  third["use_bidirectional_attention"] = false;
  for (const json& spelling : {first, second, third}) {
    const absl::StatusOr<ModelConfig> config = Load(spelling);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope.theta, 1e6);
    EXPECT_EQ(config->rope.kind, RopeConfig::Kind::kLinear);
    EXPECT_EQ(config->sliding_rope->theta, 1e4);
    EXPECT_EQ(config->sliding_rope->kind, RopeConfig::Kind::kDefault);
    EXPECT_TRUE(config->HasWindow(0));
    EXPECT_FALSE(config->HasWindow(1));
    EXPECT_TRUE(config->HasWindow(2));
  }
  third["rope_parameters"]["chunked_attention"] = {{"rope_type", "default"}};
  ExpectRefused(Load(third), {"chunked_attention"});
  third["rope_parameters"].erase("chunked_attention");
  third["rope_parameters"]["full_attention"]["rope_type"] = "foo";
  ExpectRefused(Load(third), {"rope_parameters.full_attention", "foo"});
}

json Gpt2Json() {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"n_embd", 32},
          {"n_layer", 2},
          {"n_head", 4},
          {"n_positions", 64},
          {"n_ctx", 64},
          {"vocab_size", 100},
          {"layer_norm_epsilon", 1e-5},
          {"activation_function", "gelu_new"},
          {"summary_type", "cls_index"}};
}

TEST(ArchitectureConfigTest, Gpt2HasNamesOfItsOwn) {
  const absl::StatusOr<ModelConfig> config = Load(Gpt2Json());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->intermediate_size, 128);
  EXPECT_EQ(config->max_position_embeddings, 64);
  EXPECT_EQ(config->rotary_dim(), 0);
  EXPECT_TRUE(config->tie_word_embeddings);
  const std::vector<WeightSpec> specs = FindArchitecture(config->architecture)->weights(*config);
  for (const WeightSpec& spec : specs) {
    if (spec.role != WeightRole::kQkv || spec.layer != 1) continue;
    ASSERT_EQ(spec.parts.size(), 3u);
    EXPECT_EQ(spec.parts[1].tensor, "transformer.h.1.attn.c_attn.weight");
    EXPECT_TRUE(spec.parts[1].transposed);
    EXPECT_EQ(spec.parts[1].first_row, 32);
    EXPECT_EQ(spec.parts[1].tensor_rows, 96);
  }
  json wrong = Gpt2Json();
  wrong["scale_attn_by_inverse_layer_idx"] = true;
  ExpectRefused(Load(wrong), {"scale_attn_by_inverse_layer_idx is true"});
  wrong = Gpt2Json();
  wrong["hidden_size"] = 64;
  ExpectRefused(Load(wrong), {"hidden_size is 64", "n_embd"});
}

TEST(ArchitectureConfigTest, BloomInBothSpellings) {
  json old_spelling = {{"architectures", {"BloomForCausalLM"}},
                       {"n_embed", 32},
                       {"n_layer", 2},
                       {"num_attention_heads", 4},
                       {"vocab_size", 100},
                       {"layer_norm_epsilon", 1e-5},
                       {"apply_residual_connection_post_layernorm", false},
                       {"attention_softmax_in_fp32", true},
                       {"bias_dropout_fusion", true},
                       {"masked_softmax_fusion", true},
                       {"n_inner", nullptr},
                       {"offset_alibi", 100},
                       {"skip_bias_add", true},
                       {"skip_bias_add_qkv", false},
                       {"slow_but_exact", false},
                       {"unk_token_id", 0}};
  json new_spelling = {{"architectures", {"BloomForCausalLM"}},
                       {"hidden_size", 32},
                       {"n_layer", 2},
                       {"n_head", 4},
                       {"vocab_size", 100},
                       {"layer_norm_epsilon", 1e-5}};
  for (const json& spelling : {old_spelling, new_spelling}) {
    const absl::StatusOr<ModelConfig> config = Load(spelling);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->hidden_size, 32);
    EXPECT_EQ(config->intermediate_size, 128);
    EXPECT_EQ(config->alibi_bias_max, 8.0f);
    EXPECT_EQ(config->max_position_embeddings, 2048);
  }
  new_spelling["apply_residual_connection_post_layernorm"] = true;
  ExpectRefused(Load(new_spelling), {"apply_residual_connection_post_layernorm is true"});
}

TEST(ArchitectureConfigTest, MptUnderBothNames) {
  json fields = {{"architectures", {"MptForCausalLM"}},
                 {"d_model", 32},
                 {"n_layers", 2},
                 {"n_heads", 4},
                 {"expansion_ratio", 2},
                 {"max_seq_len", 256},
                 {"vocab_size", 100},
                 {"no_bias", true},
                 {"norm_type", "low_precision_layernorm"},
                 {"attn_config", {{"alibi", true}, {"attn_impl", "torch"}, {"clip_qkv", nullptr}}}};
  for (const char* name : {"MptForCausalLM", "MPTForCausalLM"}) {
    fields["architectures"] = {name};
    const absl::StatusOr<ModelConfig> config = Load(fields);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->intermediate_size, 64);
    EXPECT_FALSE(config->norm_bias);
    EXPECT_EQ(config->activation, kernels::Activation::kGelu);
  }
  fields["attn_config"]["clip_qkv"] = 6;
  ExpectRefused(Load(fields), {"attn_config.clip_qkv is 6"});
  fields["attn_config"] = {{"alibi", false}};
  ExpectRefused(Load(fields), {"attn_config.alibi is false"});
  fields["attn_config"] = {{"rope", true}};
  ExpectRefused(Load(fields), {"attn_config.rope is true"});
}

TEST(ArchitectureConfigTest, EveryArchitectureHasItsWeightsUnderOneName) {
  const absl::StatusOr<ModelConfig> olmo2 = Load(With("Olmo2ForCausalLM", {}));
  ASSERT_TRUE(olmo2.ok()) << olmo2.status();
  const std::vector<std::string> names = TensorNames(*olmo2);
  EXPECT_THAT(names, testing::Contains("model.layers.0.post_feedforward_layernorm.weight"));
  EXPECT_THAT(names, testing::Not(testing::Contains("model.layers.0.input_layernorm.weight")));
  const absl::StatusOr<ModelConfig> starcoder2 = Load(With("Starcoder2ForCausalLM",
                                                           {{"rms_norm_eps", nullptr},
                                                            {"norm_epsilon", 1e-5},
                                                            {"hidden_act", "gelu_pytorch_tanh"},
                                                            {"use_bias", true},
                                                            {"norm_type", "layer_norm"},
                                                            {"mlp_type", "default"},
                                                            {"embedding_dropout", 0.1},
                                                            {"residual_dropout", 0.1}}));
  ASSERT_TRUE(starcoder2.ok()) << starcoder2.status();
  EXPECT_TRUE(starcoder2->mlp_bias && starcoder2->norm_bias);
  EXPECT_THAT(TensorNames(*starcoder2), testing::Contains("model.layers.1.mlp.c_fc.bias"));
}

}  // namespace
}  // namespace pagoda::engine
