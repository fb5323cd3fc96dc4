#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/text/json_element.h"
#include "engine/text/regex.h"

namespace pagoda::engine {

// What pre-tokenizers write to. Thread-compatible; one for each thread that encodes.
struct PreTokenizerScratch {
  RegexScratch regex;
  // Text that pieces may point to beside the input: a deque, so that growing moves nothing.
  std::deque<std::string> owned_text;
  // Where the text as a whole begins, if what is split now begins it; else null.
  const char* text_begin = nullptr;
};

// Cuts text into the pieces that the model encodes one by one. Immutable; thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  // Appends the pieces of `text`, which is valid UTF-8. They point into `text` or into
  // scratch.owned_text, in order; none is empty.
  virtual absl::Status Split(absl::string_view text,
                             PreTokenizerScratch& scratch,
                             std::vector<absl::string_view>* pieces) const = 0;
};

// A pre-tokenizer and whether it makes the model read bytes, spelled in the byte alphabet, instead
// of characters.
struct PreTokenizerChain {
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: text is one piece
  bool is_byte_level = false;
};

// From the element "pre_tokenizer", absent where there is none; INVALID_ARGUMENT naming what is not
// supported.
absl::StatusOr<PreTokenizerChain> MakePreTokenizer(const absl::optional<JsonElement>& element);

}  // namespace pagoda::engine
