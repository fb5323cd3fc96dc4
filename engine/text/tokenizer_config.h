#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace pagoda::engine {

// What tokenizer_config.json says beside the tokenizer itself. Its add_bos_token and add_eos_token
// are left alone: the post-processor of tokenizer.json is what the libraries follow.
struct TokenizerConfig {
  absl::optional<std::string> bos_token;  // spelling
  absl::optional<std::string> eos_token;
  std::string chat_template;  // empty: none
};

// Reads <model_dir>/tokenizer_config.json and chat_template.jinja, whose template wins; all absent
// without them.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::string& model_dir);

}  // namespace pagoda::engine
