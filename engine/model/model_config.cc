#include "engine/model/model_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "engine/model/architecture.h"
#include "engine/model/config_fields.h"
#include "engine/model/config_readers.h"
#include "engine/model/json_file.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

constexpr int32_t kMaxVocab = 1 << 26;

// The rule for fields that this file does not read. Three kinds are accepted:
//   - those listed here: how the model was trained, written or was to be generated from, and ids of
//   special tokens;
//     none reaches the arithmetic of one forward pass;
//   - those below with their one neutral value;
//   - null, and names that begin with '_'.
// Anything else may change the arithmetic and is refused by name.
constexpr absl::string_view kHarmlessFields[] = {
    // Written by transformers for every model.
    "architectures",
    "model_type",
    "transformers_version",
    "tokenizer_class",
    "use_cache",
    "return_dict",
    "return_dict_in_generate",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_router_logits",
    "torchscript",
    "use_bfloat16",
    "id2label",
    "label2id",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "num_labels",
    "is_decoder",
    "remove_invalid_values",
    "prefix",
    "gradient_checkpointing",
    "attn_implementation",
    // Training.
    "attention_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "initializer_range",
    "neftune_noise_alpha",
    "unsloth_fixed",
    "unsloth_version",
    "pretraining_tp",  // splits products over ranks: the same sums
    // Token ids that only the text side uses.
    "pad_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    // Defaults of generation; generation_config.json is where Pagoda reads them.
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "min_length",
    "max_length",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "early_stopping",
    "length_penalty",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_return_sequences",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "exponential_decay_length_penalty",
    // Upper bound of tokenizers, written by some trainers; max_position_embeddings rules.
    "model_max_length",
    "max_sequence_length",
};

constexpr absl::string_view kUnknownField =
    "Pagoda does not know this field, which may change the model's arithmetic: remove it from the "
    "file if it does not";

void RequireNeutralFields(ConfigFields& fields) {
  for (absl::string_view name : {"is_encoder_decoder",
                                 "add_cross_attention",
                                 "tie_encoder_decoder",
                                 "rope_interleaved",
                                 "use_mrope",
                                 "use_bidirectional_attention"}) {
    fields.RequireNeutral(name, false);
  }
  fields.RequireNeutral("chunk_size_feed_forward", 0);
  fields.RequireNeutral("pruned_heads", nlohmann::json::object());
  fields.RequireNeutral("quantization_config", nullptr);
}

const Architecture* ReadArchitecture(ConfigFields& fields) {
  const std::vector<std::string> names = fields.Strings("architectures");
  const Architecture* architecture = names.size() == 1 ? FindArchitecture(names[0]) : nullptr;
  if (architecture == nullptr && fields.ok()) {
    fields.Refuse("architectures", absl::StrCat("a list of one of ", ArchitectureNames()));
  }
  return architecture;
}

// "torch_dtype" and "dtype" are the same field of two versions; without either, values are float32,
// which holds every checkpoint's values exactly.
DType ReadDType(ConfigFields& fields) {
  const absl::optional<std::string> old_name = fields.OptionalString("torch_dtype");
  const absl::optional<std::string> new_name = fields.OptionalString("dtype");
  if (old_name && new_name && *old_name != *new_name) {
    fields.Refuse("torch_dtype", absl::StrCat("the value of dtype, \"", *new_name, "\""));
  }
  const std::string name = new_name.value_or(old_name.value_or("float32"));
  const absl::StatusOr<DType> dtype = ParseDType(absl::StripPrefix(name, "torch."));
  if (dtype.ok() && *dtype != DType::kInt32) return *dtype;
  fields.Refuse(new_name ? "dtype" : "torch_dtype", "\"float32\", \"bfloat16\" or \"float16\"");
  return DType::kFloat32;
}

void ReadCommonFields(ConfigFields& fields, ModelConfig& config) {
  config.vocab_size = fields.RequiredInt("vocab_size", 1, kMaxVocab);
  config.eos_token_ids = fields.IntOrList("eos_token_id", 0, config.vocab_size - 1);
  config.bos_token_id = fields.OptionalInt("bos_token_id", 0, config.vocab_size - 1);
  config.dtype = ReadDType(fields);
}

// What sums of sizes are far from overflowing with; a thousand times what any model has.
constexpr double kMaxParameters = 1e15;

double ParametersAtMost(const ModelConfig& config) {
  const double hidden = config.hidden_size;
  const double heads = 4.0 * config.num_heads * config.head_dim;
  const double dense = 3.0 * config.intermediate_size;
  const double experts =
      config.experts ? 3.0 * config.experts->num_experts * config.experts->intermediate_size : 0;
  return hidden * (config.num_layers * (heads + dense + experts) + 2.0 * config.vocab_size);
}

}  // namespace

void IgnoreHarmlessFields(ConfigFields& fields) { fields.Ignore(kHarmlessFields); }

absl::StatusOr<ModelConfig> LoadModelConfig(absl::string_view model_dir) {
  const std::string path = absl::StrCat(model_dir, "/config.json");
  absl::StatusOr<nlohmann::json> object = ReadJsonObject(path);
  if (absl::IsNotFound(object.status())) {
    return absl::NotFoundError(absl::StrCat(
        object.status().message(), "; expected a model directory in the Hugging Face layout"));
  }
  if (!object.ok()) return object.status();
  ConfigFields fields(path, "", *std::move(object));
  ModelConfig config;
  const Architecture* architecture = ReadArchitecture(fields);
  if (architecture == nullptr) return fields.Finish(kUnknownField);
  config.architecture = std::string(architecture->name);
  RequireNeutralFields(fields);
  ReadCommonFields(fields, config);
  architecture->read_config(fields, config);
  if (!config.sliding_window) fields.RequireNeutral("use_sliding_window", false);
  if (config.num_heads % std::max(config.num_kv_heads, 1) != 0) {
    fields.Refuse("num_key_value_heads",
                  absl::StrCat("a divisor of num_attention_heads ", config.num_heads));
  }
  IgnoreHarmlessFields(fields);
  // Code that the checkpoint brings along. An architecture whose checkpoints do though transformers
  // has the same has ignored it.
  if (!fields.IsRead("auto_map")) fields.RequireNeutral("auto_map", nullptr);
  PAGODA_RETURN_IF_ERROR(fields.Finish(kUnknownField));
  if (const double parameters = ParametersAtMost(config); parameters > kMaxParameters) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: its sizes make a model of %.1e parameters, expected at most %.0e",
                        path,
                        parameters,
                        kMaxParameters));
  }
  return config;
}

}  // namespace pagoda::engine
