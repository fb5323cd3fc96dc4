#include "daemon/openai/tool_parser.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "daemon/openai/call_reader.h"
#include "daemon/openai/reasoning_parser.h"

namespace pagoda::daemon::openai {
namespace {

constexpr absl::string_view kOpenCall = "<tool_call>";
constexpr absl::string_view kCloseCall = "</tool_call>";
constexpr absl::string_view kPythonTag = "<|python_tag|>";

class PlainText final : public OutputParser {
 public:
  void Feed(absl::string_view text, ParsedOutput* out) override {
    absl::StrAppend(&out->content, text);
  }
  void Finish(ParsedOutput* /*out*/) override {}
  size_t num_calls() const override { return 0; }
};

// All text is one call's arguments.
class ForcedCall final : public OutputParser {
 public:
  explicit ForcedCall(std::string name) : name_(std::move(name)) {}

  void Feed(absl::string_view text, ParsedOutput* out) override {
    if (!text.empty()) Add(text, out);
  }
  void Finish(ParsedOutput* out) override {
    if (!is_named_) Add("", out);
  }
  size_t num_calls() const override { return 1; }

 private:
  void Add(absl::string_view text, ParsedOutput* out) {
    ToolCallPiece piece = {.arguments = std::string(text)};
    if (!std::exchange(is_named_, true)) piece.name = name_;
    out->calls.push_back(std::move(piece));
  }

  const std::string name_;
  bool is_named_ = false;
};

// All text is a JSON list of calls.
class RequiredCalls final : public OutputParser {
 public:
  void Feed(absl::string_view text, ParsedOutput* out) override {
    absl::StrAppend(&held_, text);
    while (Step(out)) {
    }
  }
  void Finish(ParsedOutput* out) override {
    // Cut short by max_tokens before it was a call.
    if (num_calls_ == 0) absl::StrAppend(&out->content, lead_, held_);
    held_.clear();
  }
  size_t num_calls() const override { return num_calls_; }

 private:
  enum class State : uint8_t { kStart, kCall, kBetween, kRest };

  // Whether there may be more to do.
  bool Step(ParsedOutput* out) {
    switch (state_) {
      case State::kStart:
        return TakeMark("[");
      case State::kCall:
        return TakeCall(out);
      case State::kBetween:
        return TakeMark(",");
      case State::kRest:
        // No list of calls, which only output that was not held to the form can be.
        if (num_calls_ == 0) absl::StrAppend(&out->content, std::exchange(lead_, ""), held_);
        held_.clear();
        return false;
    }
    return false;
  }

  bool TakeMark(absl::string_view mark) {
    const size_t at = held_.find_first_not_of(" \t\r\n");
    if (at == std::string::npos) return false;
    if (!absl::StartsWith(absl::string_view(held_).substr(at), mark)) {
      state_ = State::kRest;
      return true;
    }
    if (num_calls_ == 0) lead_ = held_.substr(0, at + 1);
    held_.erase(0, at + 1);
    reader_.emplace(num_calls_, nullptr, /*only_known_keys=*/false);
    is_counted_ = false;
    state_ = State::kCall;
    return true;
  }

  bool TakeCall(ParsedOutput* out) {
    const CallReader::State state = reader_->Feed(&held_, out);
    if (reader_->has_begun() && !std::exchange(is_counted_, true)) ++num_calls_;
    if (state == CallReader::State::kDone) state_ = State::kBetween;
    if (state == CallReader::State::kNoCall) state_ = State::kRest;
    return state_ != State::kCall;
  }

  State state_ = State::kStart;
  std::string lead_;  // before the first call
  std::string held_;  // not given out yet
  absl::optional<CallReader> reader_;
  bool is_counted_ = false;  // the call at hand
  size_t num_calls_ = 0;
};

// Text in which calls may stand.
class OptionalCalls final : public OutputParser {
 public:
  explicit OptionalCalls(std::vector<std::string> tools) : tools_(std::move(tools)) {}

  void Feed(absl::string_view text, ParsedOutput* out) override {
    absl::StrAppend(&held_, text);
    while (Step(out)) {
    }
  }

  void Finish(ParsedOutput* out) override {
    const bool in_call = state_ == State::kWholeCall || state_ == State::kTaggedCall;
    if (in_call && !reader_->has_begun()) {
      absl::StrAppend(&out->content, lead_, held_);
    } else if (state_ == State::kStart || state_ == State::kText) {
      // White space after calls is theirs.
      if (num_calls_ == 0 || !absl::StripAsciiWhitespace(held_).empty())
        absl::StrAppend(&out->content, held_);
    }
    held_.clear();
    state_ = State::kText;
  }

  size_t num_calls() const override { return num_calls_; }

 private:
  enum class State : uint8_t {
    kStart,      // not known yet whether the answer begins with a call
    kWholeCall,  // in one of Llama's style
    kBetween,    // after one
    kText,
    kTaggedCall,  // after <tool_call>
    kClosing,     // where </tool_call> is expected
  };

  // Whether there may be more to do.
  bool Step(ParsedOutput* out) {
    switch (state_) {
      case State::kStart:
        return TakeStart();
      case State::kBetween:
        return TakeBetween();
      case State::kText:
        return TakeText(out);
      case State::kWholeCall:
        return TakeCall(State::kBetween, out);
      case State::kTaggedCall:
        return TakeCall(State::kClosing, out);
      case State::kClosing:
        return TakeClosing();
    }
    return false;
  }

  bool TakeStart() {
    absl::string_view start = absl::StripLeadingAsciiWhitespace(held_);
    if (absl::StartsWith(kPythonTag, start) && start.size() < kPythonTag.size()) return false;
    const bool tagged = absl::ConsumePrefix(&start, kPythonTag);
    if (!tagged && start.front() != '{') {
      state_ = State::kText;
      return true;
    }
    return StartCall(held_.size() - start.size(), State::kWholeCall);
  }

  // {...}; {...}: calls may follow each other.
  bool TakeBetween() {
    absl::string_view next = absl::StripLeadingAsciiWhitespace(held_);
    absl::ConsumePrefix(&next, ";");
    next = absl::StripLeadingAsciiWhitespace(next);
    if (next.empty()) return false;
    if (next.front() == '{') return StartCall(held_.size() - next.size(), State::kWholeCall);
    state_ = State::kText;
    return true;
  }

  // A call may begin after `size` bytes, which are text where it turns out to be none.
  bool StartCall(size_t size, State state) {
    lead_ += held_.substr(0, size);
    held_.erase(0, size);
    reader_.emplace(num_calls_, &tools_, /*only_known_keys=*/state == State::kWholeCall);
    state_ = state;
    return true;
  }

  bool TakeCall(State after, ParsedOutput* out) {
    const CallReader::State state = reader_->Feed(&held_, out);
    if (reader_->has_begun() && !std::exchange(is_counted_, true)) ++num_calls_;
    switch (state) {
      case CallReader::State::kNoCall:
        absl::StrAppend(&out->content, lead_);
        state_ = State::kText;
        break;
      case CallReader::State::kDone:
        state_ = after;
        break;
      default:
        return false;
    }
    lead_.clear();
    is_counted_ = false;
    return true;
  }

  // Gives out text up to a call. White space before a call is kept back: it goes with the call.
  bool TakeText(ParsedOutput* out) {
    const size_t open = held_.find(kOpenCall.data(), 0, kOpenCall.size());
    const bool opens = open != std::string::npos;
    const size_t end = opens ? open : held_.size() - HeldForTag(held_, kOpenCall);
    const size_t given =
        absl::StripTrailingAsciiWhitespace(absl::string_view(held_).substr(0, end)).size();
    absl::StrAppend(&out->content, absl::string_view(held_).substr(0, given));
    held_.erase(0, given);
    return opens && StartCall(open - given + kOpenCall.size(), State::kTaggedCall);
  }

  // The tag may be missing, and text follow.
  bool TakeClosing() {
    absl::string_view next = absl::StripLeadingAsciiWhitespace(held_);
    if (absl::ConsumePrefix(&next, kCloseCall)) {
      held_.erase(0, held_.size() - next.size());
    } else if (absl::StartsWith(kCloseCall, next)) {
      return false;
    }
    state_ = State::kText;
    return true;
  }

  const std::vector<std::string> tools_;
  State state_ = State::kStart;
  std::string held_;  // not given out yet
  std::string lead_;  // before the call at hand, not given out either
  absl::optional<CallReader> reader_;
  bool is_counted_ = false;  // the call at hand
  size_t num_calls_ = 0;
};

}  // namespace

std::unique_ptr<OutputParser> MakeToolParser(const OutputShape& shape) {
  if (!shape.forced_tool.empty()) return std::make_unique<ForcedCall>(shape.forced_tool);
  if (shape.requires_calls) return std::make_unique<RequiredCalls>();
  if (!shape.tools.empty() && !shape.is_constrained)
    return std::make_unique<OptionalCalls>(shape.tools);
  return std::make_unique<PlainText>();
}

}  // namespace pagoda::daemon::openai
