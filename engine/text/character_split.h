#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/json_element.h"
#include "engine/text/pre_tokenizer.h"

namespace pagoda::engine {

// For the type "BertPreTokenizer": white space is dropped, every punctuation character is a piece.
std::unique_ptr<PreTokenizer> MakeBertPreTokenizer();
// For the type "WhitespaceSplit": white space is dropped.
std::unique_ptr<PreTokenizer> MakeWhitespaceSplit();
// From an element of type "CharDelimiterSplit": one character is dropped.
absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeDelimiterSplit(const JsonElement& element);
// From an element of type "FixedLength": so many characters are a piece.
absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeFixedLength(const JsonElement& element);

}  // namespace pagoda::engine
