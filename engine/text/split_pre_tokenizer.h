#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/json_element.h"
#include "engine/text/pre_tokenizer.h"

namespace pagoda::engine {

// What becomes of the parts of a text that match a pattern and of those between.
enum class SplitBehavior {
  kIsolated,            // every match and every gap is a piece
  kRemoved,             // only gaps are pieces
  kMergedWithPrevious,  // a match ends the piece of the gap before it
  kMergedWithNext,      // a match begins the piece of the gap after it
  kContiguous,          // as isolated, but adjacent matches are one piece
};

// Splits by a pattern in the dialect of tokenizer files.
absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeRegexSplit(absl::string_view pattern,
                                                             SplitBehavior behavior,
                                                             bool invert);

// From an element of type "Split".
absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeSplit(const JsonElement& element);
// From an element of type "Digits": numeric characters apart from others, each or in runs.
absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeDigits(const JsonElement& element);
// From an element of type "Punctuation".
absl::StatusOr<std::unique_ptr<PreTokenizer>> MakePunctuation(const JsonElement& element);

}  // namespace pagoda::engine
