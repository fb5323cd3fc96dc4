#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/text/sentencepiece_file.h"
#include "engine/text/tokenizer_config.h"

namespace pagoda::engine {

// The same tokenizer as a tokenizer.json, but for its normalizer, which that format cannot say. BOS
// and EOS as tokenizer_config.json says; where it is silent, BOS before BPE models' texts and EOS
// after Unigram models', as Llama's and T5's libraries do. INVALID_ARGUMENT naming what is not
// supported.
absl::StatusOr<std::string> SentencePieceToJson(const SentencePieceFile& file,
                                                const TokenizerConfig& config);

}  // namespace pagoda::engine
