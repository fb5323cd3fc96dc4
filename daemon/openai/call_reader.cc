#include "daemon/openai/call_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "daemon/openai/json_dump.h"
#include "engine/text/chat_json.h"

namespace pagoda::daemon::openai {
namespace {

using nlohmann::ordered_json;

constexpr absl::string_view kNameKeys[] = {"\"name\"", "\"function\""};
constexpr absl::string_view kArgumentKeys[] = {"\"arguments\"", "\"parameters\""};
constexpr absl::string_view kOtherKeys[] = {"\"type\"", "\"id\""};
constexpr absl::string_view kSpace = " \t\r\n";

template <size_t kSize>
bool IsOneOf(absl::string_view key, const absl::string_view (&keys)[kSize]) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

// Whether a known key may begin like this.
bool MayBeKnownKey(absl::string_view start) {
  const auto begins = [start](absl::string_view key) { return absl::StartsWith(key, start); };
  return std::any_of(std::begin(kNameKeys), std::end(kNameKeys), begins) ||
         std::any_of(std::begin(kArgumentKeys), std::end(kArgumentKeys), begins) ||
         std::any_of(std::begin(kOtherKeys), std::end(kOtherKeys), begins);
}

// Past the string that begins at `begin`; npos: it has not ended.
size_t StringEnd(absl::string_view text, size_t begin) {
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return absl::string_view::npos;
}

// A whole call.
absl::optional<ToolCallPiece> CallOf(absl::string_view text) {
  const auto value = engine::ParseChatJson(text);
  if (!value.ok() || !value->is_object()) return absl::nullopt;
  const auto member = [&value](std::initializer_list<const char*> keys) -> const ordered_json* {
    for (const char* key : keys) {
      if (const auto found = value->find(key); found != value->end()) return &*found;
    }
    return nullptr;
  };
  const ordered_json* name = member({"name", "function"});
  if (name == nullptr || !name->is_string()) return absl::nullopt;
  ToolCallPiece call = {.name = name->get<std::string>(), .arguments = "{}"};
  const ordered_json* arguments = member({"arguments", "parameters"});
  if (arguments != nullptr)
    call.arguments = arguments->is_string() ? arguments->get<std::string>() : DumpJson(*arguments);
  return call;
}

}  // namespace

// What is known of a call from its start.
struct CallReader::Head {
  enum class Kind : uint8_t { kIncomplete, kNoCall, kBeforeArguments, kWhole };
  Kind kind = Kind::kNoCall;
  std::string name;
  size_t size = 0;  // of the text before the arguments, or of the call
};

size_t CallReader::Nesting::Scan(absl::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (is_escaped) {
        is_escaped = false;
      } else if (c == '\\') {
        is_escaped = true;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth <= 0) {
      return i + 1;
    }
  }
  return absl::string_view::npos;
}

CallReader::Head CallReader::ReadHead(absl::string_view text) const {
  constexpr size_t kNone = absl::string_view::npos;
  const Head incomplete = {.kind = Head::Kind::kIncomplete};
  const auto skip_space = [text](size_t i) {
    return std::min(text.find_first_not_of(kSpace, i), text.size());
  };
  std::string name;
  size_t i = skip_space(0);
  if (i == text.size()) return incomplete;
  if (text[i++] != '{') return {};
  for (bool first = true;; first = false) {
    i = skip_space(i);
    if (i == text.size()) return incomplete;
    if (text[i] == '}') return {.kind = Head::Kind::kWhole, .size = i + 1};
    if (!first) {
      if (text[i] != ',') return {};
      i = skip_space(i + 1);
      if (i == text.size()) return incomplete;
    }
    if (text[i] != '"') return {};
    const size_t key_end = StringEnd(text, i);
    const absl::string_view key = text.substr(i, key_end == kNone ? kNone : key_end - i);
    if (only_known_keys_ && !MayBeKnownKey(key)) return {};
    if (key_end == kNone || (i = skip_space(key_end)) == text.size()) return incomplete;
    if (text[i] != ':') return {};
    i = skip_space(i + 1);
    if (i == text.size()) return incomplete;
    if (text[i] == '{' && !name.empty() && IsOneOf(key, kArgumentKeys))
      return {.kind = Head::Kind::kBeforeArguments, .name = std::move(name), .size = i};
    const size_t begin = i;
    if (text[i] == '"') {
      i = StringEnd(text, i);
    } else if (text[i] == '{' || text[i] == '[') {
      const size_t size = Nesting().Scan(text.substr(i));
      i = size == kNone ? kNone : i + size;
    } else {
      i = text.find_first_of(" \t\r\n,}", i);
    }
    if (i == kNone) return incomplete;
    if (text[begin] != '"' || !IsOneOf(key, kNameKeys)) continue;
    const auto value = engine::ParseChatJson(text.substr(begin, i - begin));
    if (!value.ok() || !IsTool(name = value->get<std::string>())) return {};
  }
}

bool CallReader::IsTool(absl::string_view name) const {
  return !name.empty() &&
         (tools_ == nullptr || std::find(tools_->begin(), tools_->end(), name) != tools_->end());
}

void CallReader::Give(std::string name, absl::string_view arguments, ParsedOutput* out) {
  has_begun_ = true;
  out->calls.push_back(
      {.index = index_, .name = std::move(name), .arguments = std::string(arguments)});
}

void CallReader::TakeHead(std::string* text, ParsedOutput* out) {
  Head head = ReadHead(*text);
  switch (head.kind) {
    case Head::Kind::kIncomplete:
      return;
    case Head::Kind::kNoCall:
      state_ = State::kNoCall;
      return;
    case Head::Kind::kBeforeArguments:
      state_ = State::kArguments;
      text->erase(0, head.size);
      return Give(std::move(head.name), "", out);
    case Head::Kind::kWhole:
      break;
  }
  absl::optional<ToolCallPiece> call = CallOf(absl::string_view(*text).substr(0, head.size));
  if (!call.has_value() || !IsTool(call->name)) {
    state_ = State::kNoCall;
    return;
  }
  state_ = State::kDone;
  text->erase(0, head.size);
  Give(std::move(call->name), call->arguments, out);
}

void CallReader::TakeArguments(std::string* text, ParsedOutput* out) {
  const size_t end = nesting_.Scan(*text);
  const std::string arguments = text->substr(0, end);
  text->erase(0, end);
  if (end != std::string::npos) {
    state_ = State::kTail;
    nesting_ = {.depth = 1};
  }
  if (arguments.empty()) return;
  // The name and the first of the arguments come in one piece.
  if (!out->calls.empty() && out->calls.back().index == index_) {
    out->calls.back().arguments += arguments;
  } else {
    Give("", arguments, out);
  }
}

CallReader::State CallReader::Feed(std::string* text, ParsedOutput* out) {
  if (state_ == State::kHead) TakeHead(text, out);
  if (state_ == State::kArguments) TakeArguments(text, out);
  if (state_ == State::kTail) {
    const size_t end = nesting_.Scan(*text);
    text->erase(0, end);
    if (end != std::string::npos) state_ = State::kDone;
  }
  return state_;
}

}  // namespace pagoda::daemon::openai
