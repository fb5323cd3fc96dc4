#pragma once

#include <memory>

#include "daemon/openai/output_parser.h"

namespace pagoda::daemon::openai {

// The calls in an answer. Of the styles that models have been taught it knows
//   <tool_call>{"name": "f", "arguments": {...}}</tool_call>    Hermes, Qwen: anywhere, any number
//   {"name": "f", "parameters": {...}}; {...}                    Llama 3: from the answer's start
// and, where the request forces calls, a JSON list of the latter or one call's arguments alone.
// What turns out to be no call of a tool of the request, before its arguments begin, is text again.
std::unique_ptr<OutputParser> MakeToolParser(const OutputShape& shape);

}  // namespace pagoda::daemon::openai
