#pragma once

#include "engine/text/jinja/value.h"

namespace pagoda::engine::jinja {

// Python's case mappings of all of Unicode: str.upper, lower, title and capitalize.
MarkedString ToUpper(const MarkedString& text);
MarkedString ToLower(const MarkedString& text);
MarkedString ToTitle(const MarkedString& text);
MarkedString Capitalized(const MarkedString& text);
// The filter title, which is another: words begin after white space, hyphens and opening brackets.
MarkedString WordsCapitalized(const MarkedString& text);

}  // namespace pagoda::engine::jinja
