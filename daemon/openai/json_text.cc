#include "daemon/openai/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/text/utf8.h"

namespace pagoda::daemon::openai {
namespace {

bool NeedsEscape(char c) { return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\'; }

void AppendEscaped(char c, std::string* json) {
  static constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      json->append("\\\"");
      return;
    case '\\':
      json->append("\\\\");
      return;
    case '\n':
      json->append("\\n");
      return;
    case '\r':
      json->append("\\r");
      return;
    case '\t':
      json->append("\\t");
      return;
    default:
      json->append("\\u00");
      json->push_back(kHex[static_cast<unsigned char>(c) >> 4]);
      json->push_back(kHex[static_cast<unsigned char>(c) & 0xF]);
  }
}

}  // namespace

void AppendString(absl::string_view text, std::string* json) {
  std::string repaired;
  if (!engine::IsValidUtf8(text)) {
    if (engine::AppendUtf8(text, &repaired) > 0) repaired.append("\xEF\xBF\xBD");
    text = repaired;
  }
  json->push_back('"');
  while (!text.empty()) {
    const auto stop = std::find_if(text.begin(), text.end(), NeedsEscape);
    json->append(text.begin(), stop);
    text.remove_prefix(static_cast<size_t>(stop - text.begin()));
    if (text.empty()) break;
    AppendEscaped(text.front(), json);
    text.remove_prefix(1);
  }
  json->push_back('"');
}

void AppendLogprob(float logprob, std::string* json) {
  // A log-probability is never positive but for rounding; NaN would be a bug, and is no JSON.
  if (!(logprob > kLeastLogprob)) logprob = kLeastLogprob;
  if (std::isinf(logprob)) logprob = 0.0f;
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), logprob).ptr;
  json->append(buffer, end);
}

void AppendInteger(int64_t value, std::string* json) { absl::StrAppend(json, value); }

void AppendComma(std::string* json) {
  if (!json->empty() && json->back() != '[' && json->back() != '{') json->push_back(',');
}

}  // namespace pagoda::daemon::openai
