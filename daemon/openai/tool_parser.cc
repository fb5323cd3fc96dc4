#include "daemon/openai/tool_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/openai/json_fields.h"
#include "daemon/openai/reasoning_parser.h"
#include "engine/text/chat_json.h"

namespace pagoda::daemon::openai {
namespace {

using nlohmann::ordered_json;

constexpr absl::string_view kOpenCall = "<tool_call>";
constexpr absl::string_view kCloseCall = "</tool_call>";
constexpr absl::string_view kPythonTag = "<|python_tag|>";
// What a call of Llama's style can begin with, after its brace.
constexpr absl::string_view kFirstKeys[] = {"\"name\"", "\"type\"", "\"function\""};

absl::optional<ToolCallPiece> CallOf(const ordered_json& value) {
  if (!value.is_object() || !value.contains("name") || !value["name"].is_string())
    return absl::nullopt;
  const char* key = value.contains("arguments") ? "arguments" : "parameters";
  ToolCallPiece call = {.name = value["name"].get<std::string>(), .arguments = "{}"};
  if (!value.contains(key)) return call;
  const ordered_json& arguments = value[key];
  call.arguments = arguments.is_string() ? arguments.get<std::string>() : DumpJson(arguments);
  return call;
}

// Length of the JSON value at the start of `text`, of which only brackets and strings are looked
// at; 0: it does not end here.
size_t ObjectSize(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return 0;
}

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

// All text is a JSON list of calls; it is read when it has ended.
class RequiredCalls final : public OutputParser {
 public:
  void Feed(absl::string_view text, ParsedOutput* /*out*/) override {
    absl::StrAppend(&text_, text);
  }
  void Finish(ParsedOutput* out) override {
    const auto list = engine::ParseChatJson(text_);
    std::vector<ToolCallPiece> calls;
    if (list.ok() && list->is_array()) {
      for (const ordered_json& value : *list) {
        auto call = CallOf(value);
        if (!call.has_value()) break;
        call->index = calls.size();
        calls.push_back(*std::move(call));
      }
    }
    // Cut short by max_tokens.
    if (calls.empty() || calls.size() != list->size()) {
      absl::StrAppend(&out->content, text_);
      return;
    }
    num_calls_ = calls.size();
    out->calls = std::move(calls);
  }
  size_t num_calls() const override { return num_calls_; }

 private:
  std::string text_;
  size_t num_calls_ = 0;
};

// Text in which calls may stand.
class OptionalCalls final : public OutputParser {
 public:
  explicit OptionalCalls(std::vector<std::string> tools) : tools_(std::move(tools)) {}

  void Feed(absl::string_view text, ParsedOutput* out) override {
    absl::StrAppend(&held_, text);
    Step(out);
  }

  void Finish(ParsedOutput* out) override {
    if (state_ == State::kStart || state_ == State::kWhole) {
      if (!TakeWholeCalls(out)) absl::StrAppend(&out->content, held_);
    } else if (state_ == State::kCall) {
      // The closing tag may have been the token that ended the text.
      if (!TakeCall(held_, out)) absl::StrAppend(&out->content, gap_, kOpenCall, held_);
    } else {
      absl::StrAppend(&out->content, held_);
    }
    held_.clear();
    state_ = State::kText;
  }

  size_t num_calls() const override { return num_calls_; }

 private:
  enum class State : uint8_t {
    kStart,  // not known yet whether the whole answer is a call
    kWhole,  // it may be: everything is held
    kText,
    kCall,  // after <tool_call>
  };

  void Step(ParsedOutput* out) {
    if (state_ == State::kStart) Start();
    if (state_ == State::kWhole && !MayBeWholeCalls()) state_ = State::kText;
    bool moves = state_ == State::kText || state_ == State::kCall;
    while (moves) moves = state_ == State::kText ? TakeText(out) : TakeTaggedCall(out);
  }

  void Start() {
    const absl::string_view start = absl::StripLeadingAsciiWhitespace(held_);
    if (start.empty() || (absl::StartsWith(kPythonTag, start) && start.size() < kPythonTag.size()))
      return;
    state_ =
        start.front() == '{' || absl::StartsWith(start, kPythonTag) ? State::kWhole : State::kText;
  }

  static absl::string_view WholeText(absl::string_view held) {
    held = absl::StripLeadingAsciiWhitespace(held);
    absl::ConsumePrefix(&held, kPythonTag);
    return absl::StripLeadingAsciiWhitespace(held);
  }

  // Releases JSON that answers in another shape before it has ended.
  bool MayBeWholeCalls() const {
    absl::string_view text = WholeText(held_);
    if (text.empty()) return true;
    if (!absl::ConsumePrefix(&text, "{")) return false;
    text = absl::StripLeadingAsciiWhitespace(text);
    return std::any_of(std::begin(kFirstKeys), std::end(kFirstKeys), [text](absl::string_view key) {
      return absl::StartsWith(text, key) || absl::StartsWith(key, text);
    });
  }

  // {...}; {...}: every one a call of a tool of the request, and nothing else.
  bool TakeWholeCalls(ParsedOutput* out) {
    absl::string_view text = WholeText(held_);
    std::vector<ToolCallPiece> calls;
    while (!text.empty()) {
      const size_t size = ObjectSize(text);
      if (size == 0) return false;
      const auto value = engine::ParseChatJson(text.substr(0, size));
      auto call = value.ok() ? CallOf(*value) : absl::nullopt;
      if (!call.has_value() || !IsTool(call->name)) return false;
      call->index = num_calls_ + calls.size();
      calls.push_back(*std::move(call));
      text = absl::StripLeadingAsciiWhitespace(text.substr(size));
      absl::ConsumePrefix(&text, ";");
      text = absl::StripLeadingAsciiWhitespace(text);
    }
    num_calls_ += calls.size();
    for (ToolCallPiece& call : calls) out->calls.push_back(std::move(call));
    return !calls.empty();
  }

  // Gives out text up to a call; whether one begins. White space before a call is kept back: it
  // goes with the call.
  bool TakeText(ParsedOutput* out) {
    const size_t open = absl::string_view(held_).find(kOpenCall);
    const bool opens = open != absl::string_view::npos;
    const size_t end = opens ? open : held_.size() - HeldForTag(held_, kOpenCall);
    const size_t given =
        absl::StripTrailingAsciiWhitespace(absl::string_view(held_).substr(0, end)).size();
    absl::StrAppend(&out->content, absl::string_view(held_).substr(0, given));
    if (!opens) {
      held_.erase(0, given);
      return false;
    }
    gap_ = held_.substr(given, open - given);
    held_.erase(0, open + kOpenCall.size());
    state_ = State::kCall;
    return true;
  }

  // Whether the call has ended.
  bool TakeTaggedCall(ParsedOutput* out) {
    const size_t close = absl::string_view(held_).find(kCloseCall);
    if (close == absl::string_view::npos) return false;
    const absl::string_view inner = absl::string_view(held_).substr(0, close);
    if (!TakeCall(inner, out)) absl::StrAppend(&out->content, gap_, kOpenCall, inner, kCloseCall);
    held_.erase(0, close + kCloseCall.size());
    state_ = State::kText;
    return true;
  }

  bool TakeCall(absl::string_view inner, ParsedOutput* out) {
    const auto value = engine::ParseChatJson(inner);
    auto call = value.ok() ? CallOf(*value) : absl::nullopt;
    if (!call.has_value() || !IsTool(call->name)) return false;
    call->index = num_calls_++;
    out->calls.push_back(*std::move(call));
    return true;
  }

  bool IsTool(absl::string_view name) const {
    return std::find(tools_.begin(), tools_.end(), name) != tools_.end();
  }

  const std::vector<std::string> tools_;
  State state_ = State::kStart;
  std::string held_;  // not given out yet
  std::string gap_;   // white space before the call at hand
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
