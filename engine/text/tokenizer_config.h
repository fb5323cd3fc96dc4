#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "nlohmann/json.hpp"

namespace pagoda::engine {

// What tokenizer_config.json says beside the tokenizer itself. Where there is a tokenizer.json, its
// post-processor is what the libraries follow and add_bos_token and add_eos_token mean nothing.
struct TokenizerConfig {
  absl::optional<std::string> bos_token;  // spelling
  absl::optional<std::string> eos_token;
  absl::optional<bool> add_bos_token;
  absl::optional<bool> add_eos_token;
  // "added_tokens_decoder": tokens by id, as an object; for models without a tokenizer.json.
  nlohmann::json added_tokens = nlohmann::json::object();
};

// Reads <model_dir>/tokenizer_config.json; all absent without it.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::string& model_dir);

}  // namespace pagoda::engine
