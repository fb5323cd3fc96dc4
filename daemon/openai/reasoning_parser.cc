#include "daemon/openai/reasoning_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace pagoda::daemon::openai {
namespace {

// As models write them.
constexpr ThoughtTagPair kThoughtTags[] = {{"<think>", "</think>"},
                                           {"<thinking>", "</thinking>"},
                                           {"<thought>", "</thought>"},
                                           {"<reasoning>", "</reasoning>"},
                                           {"<seed:think>", "</seed:think>"},
                                           {"[THINK]", "[/THINK]"}};

}  // namespace

absl::Span<const ThoughtTagPair> ThoughtTagPairs() { return kThoughtTags; }

size_t HeldForTag(absl::string_view text, absl::string_view tag) {
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (absl::EndsWith(text, tag.substr(0, size))) return size;
  }
  return 0;
}

ReasoningParser::ReasoningParser(ReasoningMode mode)
    : state_(mode == ReasoningMode::kNone   ? State::kAnswer
             : mode == ReasoningMode::kAuto ? State::kStart
                                            : State::kThinking),
      close_tag_(kThoughtTags[0].close) {}

void ReasoningParser::Feed(absl::string_view text, std::string* reasoning, std::string* answer) {
  if (state_ == State::kAnswer) {
    absl::StrAppend(answer, text);
    return;
  }
  num_bytes_ += text.size();
  absl::StrAppend(&held_, text);
  Step(reasoning, answer);
}

void ReasoningParser::Step(std::string* reasoning, std::string* answer) {
  if (state_ == State::kStart && !TryOpen(answer)) return;
  if (state_ == State::kThinking && !TryClose(reasoning)) return;
  if (state_ == State::kBetween) {
    const absl::string_view rest = absl::StripLeadingAsciiWhitespace(held_);
    if (!rest.empty()) {
      absl::StrAppend(answer, rest);
      state_ = State::kAnswer;
    }
    held_.clear();
  }
}

// Whether it is known how the text begins.
bool ReasoningParser::TryOpen(std::string* answer) {
  const absl::string_view start = absl::StripLeadingAsciiWhitespace(held_);
  bool may_open = false;
  for (const ThoughtTagPair& tags : kThoughtTags) {
    if (absl::StartsWith(start, tags.open)) {
      close_tag_ = std::string(tags.close);
      held_ = std::string(start.substr(tags.open.size()));
      state_ = State::kThinking;
      return true;
    }
    may_open = may_open || absl::StartsWith(tags.open, start);
  }
  if (may_open) return false;
  answer->append(std::exchange(held_, ""));
  state_ = State::kAnswer;
  return true;
}

// Gives out thoughts; whether they have ended. What may be the tag, or white space before it, is
// kept.
bool ReasoningParser::TryClose(std::string* reasoning) {
  const size_t close = held_.find(close_tag_);
  const bool closed = close != std::string::npos;
  size_t end = closed ? close : held_.size() - HeldForTag(held_, close_tag_);
  absl::string_view thought = absl::string_view(held_).substr(0, end);
  thought = absl::StripTrailingAsciiWhitespace(thought);
  const size_t given = thought.size();
  if (!has_thought_) thought = absl::StripLeadingAsciiWhitespace(thought);
  has_thought_ = has_thought_ || !thought.empty();
  absl::StrAppend(reasoning, thought);
  held_.erase(0, closed ? close + close_tag_.size() : given);
  if (closed) {
    state_ = State::kBetween;
    thought_bytes_ = num_bytes_ - held_.size();
  }
  return closed;
}

void ReasoningParser::Finish(std::string* reasoning, std::string* answer) {
  if (state_ == State::kStart) {
    answer->append(std::exchange(held_, ""));
  } else if (state_ == State::kThinking) {
    absl::string_view rest = absl::StripTrailingAsciiWhitespace(held_);
    if (!has_thought_) rest = absl::StripLeadingAsciiWhitespace(rest);
    absl::StrAppend(reasoning, rest);
    held_.clear();
  }
  state_ = State::kAnswer;
}

}  // namespace pagoda::daemon::openai
