// generation_config.json: the sampling defaults of model_config.h.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/config_fields.h"
#include "engine/model/json_file.h"
#include "engine/model/model_config.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Lower end of ranges that leave 0 out, as requests do.
constexpr double kAboveZero = 1e-6;
constexpr int32_t kMaxTokenId = (1 << 26) - 1;

// Settings that would change the text and that Pagoda takes from requests only.
constexpr absl::string_view kRequestOnlyFields[] = {
    "bad_words_ids",
    "begin_suppress_tokens",
    "suppress_tokens",
    "forced_bos_token_id",
    "no_repeat_ngram_size",
    "penalty_alpha",
    "sequence_bias",
};

absl::optional<float> OptionalFloat(ConfigFields& fields,
                                    absl::string_view name,
                                    double min,
                                    double max) {
  const absl::optional<double> number = fields.OptionalNumber(name, min, max);
  if (!number) return absl::nullopt;
  return static_cast<float>(*number);
}

}  // namespace

absl::StatusOr<GenerationConfig> LoadGenerationConfig(absl::string_view model_dir) {
  const std::string path = absl::StrCat(model_dir, "/generation_config.json");
  absl::StatusOr<nlohmann::json> object = ReadJsonObject(path);
  if (absl::IsNotFound(object.status())) return GenerationConfig{};
  if (!object.ok()) return object.status();
  ConfigFields fields(path, "", *std::move(object));
  GenerationConfig config;
  config.do_sample = fields.OptionalBool("do_sample");
  config.temperature = OptionalFloat(fields, "temperature", 0.0, 1e6);
  config.top_p = OptionalFloat(fields, "top_p", kAboveZero, 1.0);
  config.min_p = OptionalFloat(fields, "min_p", 0.0, 1.0);
  config.typical_p = OptionalFloat(fields, "typical_p", kAboveZero, 1.0);
  config.repetition_penalty = OptionalFloat(fields, "repetition_penalty", kAboveZero, 10.0);
  config.top_k = fields.OptionalInt("top_k", -1, 1 << 30);
  // 0 and -1 both mean "off" in published files; Pagoda has one spelling.
  if (config.top_k && *config.top_k <= 0) config.top_k = 0;
  config.eos_token_ids = fields.IntOrList("eos_token_id", 0, kMaxTokenId);
  for (absl::string_view name : kRequestOnlyFields) {
    if (fields.Has(name)) {
      LogWarning("%s: %s is not applied; requests can ask for it", path, std::string(name));
    }
  }
  if (!fields.ok()) return fields.Finish("");
  return config;
}

}  // namespace pagoda::engine
