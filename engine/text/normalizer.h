#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/text/json_element.h"
#include "engine/text/regex.h"

namespace pagoda::engine {

// Text on its way through normalizers.
struct NormalizedText {
  std::string text;
  // As long as text, '\1' for bytes that come from trusted ones only; empty: nobody asks.
  std::string trusted;
};

// Rewrites text before added tokens that are `normalized` and the pre-tokenizer see it. Immutable;
// thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // REQUIRES: text is valid UTF-8; so is the result.
  virtual absl::Status Apply(RegexScratch& scratch, NormalizedText* text) const = 0;
};

// From the element "normalizer", absent where there is none; null: text stays as it is.
// INVALID_ARGUMENT naming what is not supported.
absl::StatusOr<std::unique_ptr<Normalizer>> MakeNormalizer(
    const absl::optional<JsonElement>& element);

// Rewrites a text stretch by stretch; marks follow.
class TextRewriter {
 public:
  explicit TextRewriter(NormalizedText* text) : from_(*text) {
    to_.text.reserve(from_.text.size());
  }

  // [begin, end) of the old text becomes `replacement`.
  void Replace(size_t begin, size_t end, absl::string_view replacement);
  void Keep(size_t begin, size_t end);
  void Finish() { from_ = std::move(to_); }

 private:
  NormalizedText& from_;
  NormalizedText to_;
};

// Rewrites a text character by character: `map` appends what becomes of one.
void MapCharacters(NormalizedText* text,
                   absl::FunctionRef<void(char32_t character, std::string* out)> map);

}  // namespace pagoda::engine
