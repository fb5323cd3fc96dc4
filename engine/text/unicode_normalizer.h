#pragma once

#include <memory>

#include "absl/strings/string_view.h"
#include "engine/text/normalizer.h"

namespace pagoda::engine {

// For the types that go character by character or by Unicode's tables: "NFC", "NFD", "NFKC",
// "NFKD", "Lowercase", "StripAccents", "Nmt". Null for any other.
std::unique_ptr<Normalizer> MakeUnicodeNormalizer(absl::string_view type);

// One character in lower case, without a look at its neighbours.
void AppendLowercase(char32_t character, std::string* out);

}  // namespace pagoda::engine
