#pragma once

#include <memory>

#include "engine/text/pre_tokenizer.h"

namespace pagoda::engine {

// For the type "UnicodeScripts": a piece ends where the script changes. Kana are Han; a blank, or a
// character of no script, goes with what is before it, and is dropped where nothing is.
std::unique_ptr<PreTokenizer> MakeScriptSplit();

}  // namespace pagoda::engine
