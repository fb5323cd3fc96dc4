#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/json_element.h"
#include "engine/text/pre_tokenizer.h"

namespace pagoda::engine {

// When text gets a replacement character that it does not begin with.
enum class PrependScheme { kAlways, kFirst, kNever };

// The members of a pre-tokenizer or decoder of type "Metaspace".
struct Metaspace {
  std::string replacement;  // what stands for a blank
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};

// Old files have add_prefix_space, newer ones prepend_scheme, which wins where both are.
absl::StatusOr<Metaspace> ReadMetaspace(const JsonElement& element);

// Blanks become the replacement, which also begins every piece.
absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeMetaspace(const JsonElement& element);

}  // namespace pagoda::engine
