#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/openai/output_parser.h"

namespace pagoda::daemon::openai {

// Between which models write their thoughts, at the front of what they say.
struct ThoughtTagPair {
  absl::string_view open;
  absl::string_view close;
};
absl::Span<const ThoughtTagPair> ThoughtTagPairs();

// Tells thoughts from the answer after them. White space around either is dropped where they meet.
// Thread-compatible.
class ReasoningParser {
 public:
  explicit ReasoningParser(ReasoningMode mode);

  void Feed(absl::string_view text, std::string* reasoning, std::string* answer);
  // What was kept back: the text ends here.
  void Finish(std::string* reasoning, std::string* answer);
  // How much of the text so far is thoughts and their tags, and whether what follows may be.
  size_t thought_bytes() const { return state_ == State::kThinking ? num_bytes_ : thought_bytes_; }
  bool may_think() const { return state_ == State::kStart || state_ == State::kThinking; }

 private:
  enum class State : uint8_t { kStart, kThinking, kBetween, kAnswer };

  void Step(std::string* reasoning, std::string* answer);
  bool TryOpen(std::string* answer);
  bool TryClose(std::string* reasoning);

  State state_;
  std::string close_tag_;  // of the thoughts
  std::string held_;       // not given out yet
  bool has_thought_ = false;
  size_t num_bytes_ = 0;      // fed while it was not known to be the answer
  size_t thought_bytes_ = 0;  // once the thoughts have ended
};

// Bytes at the end of `text` that may be the start of `tag`.
size_t HeldForTag(absl::string_view text, absl::string_view tag);

}  // namespace pagoda::daemon::openai
