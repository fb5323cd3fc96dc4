// Stop strings, one a line; then the text, whose lines are tokens ("\n" at their ends is part of
// them but for the last). A first line of digits before the stop strings is min_tokens; one of "+"
// is include_stop.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "engine/stop_checker.h"
#include "engine/text/utf8.h"
#include "tests/fakes/fake_tokenizer.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using pagoda::engine::FakeTokenizer;
using pagoda::engine::StopChecker;
using pagoda::engine::StopMatch;
using pagoda::engine::StopParams;
using pagoda::engine::StopRules;
using pagoda::fuzz::Require;

struct Expected {
  std::string text;
  size_t num_tokens = 0;
  std::string matched;
};

// The rules of stop_checker.h, on whole texts: after each token, the first end of a match.
Expected Simulate(const StopParams& params, const std::vector<std::string>& tokens) {
  std::string before;  // tokens that take no part in matches
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    (i < static_cast<size_t>(params.min_tokens) ? before : text) += tokens[i];
    size_t best_end = std::string::npos;
    std::string best;
    for (const std::string& stop : params.stop_strings) {
      const size_t begin = text.find(stop);
      if (begin == std::string::npos) continue;
      const size_t end = begin + stop.size();
      if (end < best_end || (end == best_end && stop.size() > best.size())) {
        best_end = end;
        best = stop;
      }
    }
    if (best_end == std::string::npos) continue;
    text.resize(params.include_stop ? best_end : best_end - best.size());
    return {before + text, i + 1, best};
  }
  return {before + text, tokens.size(), ""};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::string> parts = pagoda::fuzz::SplitInput(data, size, 2);
  // Matches are on text: what is no UTF-8 becomes other bytes first.
  if (!pagoda::engine::IsValidUtf8(parts[0]) || !pagoda::engine::IsValidUtf8(parts[1])) return 0;
  StopParams params;
  for (const absl::string_view line : absl::StrSplit(parts[0], '\n')) {
    if (line == "+") {
      params.include_stop = true;
    } else if (line.size() == 1 && line[0] >= '0' && line[0] <= '9') {
      params.min_tokens = line[0] - '0';
    } else if (!line.empty() && params.stop_strings.size() < 8) {
      params.stop_strings.emplace_back(line);
    }
  }
  std::vector<std::string> tokens;
  for (const absl::string_view line : absl::StrSplit(parts[1], '\n')) {
    if (tokens.size() < 200) tokens.emplace_back(line);
  }
  const StopRules rules(params, static_cast<int32_t>(tokens.size()) + 1);
  const FakeTokenizer tokenizer(tokens);
  StopChecker checker(&rules, &tokenizer, true);
  const Expected expected = Simulate(params, tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t shown = text.size();
    const auto match = checker.Accept(static_cast<int32_t>(i), static_cast<int32_t>(i) + 1, &text);
    Require(pagoda::engine::IsValidUtf8(absl::string_view(text).substr(shown)), "not UTF-8");
    Require(match.has_value() == (!expected.matched.empty() && i + 1 == expected.num_tokens),
            "ends at another token");
    if (!match.has_value()) continue;
    const auto* const matched = std::get_if<std::string>(&match->matched_stop);
    Require(matched != nullptr && *matched == expected.matched, "another stop string");
    Require(text == expected.text, "another text");
    return 0;
  }
  Require(expected.text.compare(0, text.size(), text) == 0, "text that is not there");
  checker.Flush(&text);
  Require(text == expected.text, "text is missing");
  return 0;
}
