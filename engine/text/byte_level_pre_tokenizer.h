#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/json_element.h"
#include "engine/text/pre_tokenizer.h"

namespace pagoda::engine {

// From an element of type "ByteLevel": GPT-2's pattern (unless use_regex is false) and, where asked
// for, a space before the text; null when neither. Its change to the byte alphabet is not made
// here: the model reads the bytes themselves.
absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeByteLevelPreTokenizer(const JsonElement& element);

// Runs `inner` over text spelled in the byte alphabet, as a pre-tokenizer that comes after
// ByteLevel sees it.
std::unique_ptr<PreTokenizer> MakeByteAlphabetAdapter(std::unique_ptr<PreTokenizer> inner);

}  // namespace pagoda::engine
