// A pattern, then a text.
#include <string>
#include <vector>

#include "engine/text/regex.h"
#include "engine/text/utf8.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda;
  const std::vector<std::string> parts = fuzz::SplitInput(data, size, 2);
  const auto regex = engine::Regex::Compile(parts[0]);
  if (!regex.ok()) {
    fuzz::Require(absl::IsInvalidArgument(regex.status()), "unexpected code");
    return 0;
  }
  const std::string& text = parts[1];
  if (!engine::IsValidUtf8(text)) return 0;
  engine::RegexScratch scratch;
  size_t last_end = 0;
  const absl::Status status = regex->ForEachMatch(text, scratch, [&](size_t begin, size_t end) {
    fuzz::Require(last_end <= begin && begin <= end && end <= text.size(), "matches overlap");
    fuzz::Require(engine::IsValidUtf8(absl::string_view(text).substr(begin, end - begin)),
                  "a match cuts a character");
    last_end = end;
  });
  fuzz::Require(status.ok() || absl::IsInvalidArgument(status), "unexpected code");
  return 0;
}
