#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace pagoda::daemon {

// A prompt from a file.
struct BenchPrompt {
  std::string text;
  // Tokens to generate; 0: as many as `reply` has, or as the options say where that is empty too.
  int64_t output_tokens = 0;
  // What was answered when the file was recorded: only its length is used.
  std::string reply;
};

// Reads prompts, in order, from
// - JSON lines: {"prompt": TEXT, "output_tokens": N}, the number optional, or
// - a JSON array of conversations as ShareGPT has them: {"conversations": [{"from": "human",
//   "value": TEXT}, {"from": "gpt", "value": TEXT}, ...]}: of each the first turn of a human with
//   the answer to it; conversations without such a pair are left out.
// INVALID_ARGUMENT names the file, the line or the conversation, and what was expected.
absl::StatusOr<std::vector<BenchPrompt>> ReadPrompts(const std::string& file);

}  // namespace pagoda::daemon
