#include "daemon/openai/logprobs_json.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/openai/json_text.h"
#include "engine/text/utf8.h"

namespace pagoda::daemon::openai {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

int64_t NumCharacters(absl::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

void AppendValue(const v1::Logprob& token, std::string* json) {
  if (token.has_logprob()) {
    AppendLogprob(token.logprob(), json);
  } else {
    json->append("null");
  }
}

// {" the":-0.5}: tokens of one text are one member, the most probable of them.
void AppendTopByText(const v1::TokenLogprobs& position, std::string* json) {
  if (!position.token().has_logprob()) {
    json->append("null");
    return;
  }
  std::set<std::string> seen;
  json->push_back('{');
  const auto add = [&](const v1::Logprob& token) {
    const std::string text = TokenText(token);
    if (!seen.insert(text).second) return;
    AppendComma(json);
    AppendString(text, json);
    json->push_back(':');
    AppendValue(token, json);
  };
  for (const v1::Logprob& token : position.top()) add(token);
  // The sampled one is always among them.
  add(position.token());
  json->push_back('}');
}

// "token":...,"logprob":...,"bytes":...
void AppendChatToken(const v1::Logprob& token, std::string* json) {
  json->append("\"token\":");
  AppendString(TokenText(token), json);
  json->append(",\"logprob\":");
  AppendValue(token, json);
  json->append(",\"bytes\":");
  if (token.token_bytes().empty()) {
    json->append("null");
    return;
  }
  json->push_back('[');
  for (const char byte : token.token_bytes()) {
    AppendComma(json);
    AppendInteger(static_cast<unsigned char>(byte), json);
  }
  json->push_back(']');
}

void AppendRanked(const v1::Logprob& token, std::string* json) {
  AppendComma(json);
  absl::StrAppend(json, "\"", token.token_id(), "\":{\"logprob\":");
  AppendValue(token, json);
  absl::StrAppend(json, ",\"rank\":", token.rank(), ",\"decoded_token\":");
  AppendString(TokenText(token), json);
  json->push_back('}');
}

}  // namespace

std::string TokenText(const v1::Logprob& token) {
  if (token.token_bytes().empty()) return absl::StrCat("token_id:", token.token_id());
  std::string text;
  if (engine::AppendUtf8(token.token_bytes(), &text) > 0) text.append(kReplacement);
  return text;
}

void AppendCompletionLogprobs(const Positions& positions, int64_t* offset, std::string* json) {
  json->append("{\"tokens\":[");
  for (const v1::TokenLogprobs* position : positions) {
    AppendComma(json);
    AppendString(TokenText(position->token()), json);
  }
  json->append("],\"token_logprobs\":[");
  for (const v1::TokenLogprobs* position : positions) {
    AppendComma(json);
    AppendValue(position->token(), json);
  }
  json->append("],\"top_logprobs\":[");
  for (const v1::TokenLogprobs* position : positions) {
    AppendComma(json);
    AppendTopByText(*position, json);
  }
  json->append("],\"text_offset\":[");
  for (const v1::TokenLogprobs* position : positions) {
    AppendComma(json);
    AppendInteger(*offset, json);
    *offset += NumCharacters(TokenText(position->token()));
  }
  json->append("]}");
}

void AppendChatLogprobs(const Positions& positions, std::string* json) {
  json->append("{\"content\":[");
  for (const v1::TokenLogprobs* position : positions) {
    AppendComma(json);
    json->push_back('{');
    AppendChatToken(position->token(), json);
    json->append(",\"top_logprobs\":[");
    for (const v1::Logprob& top : position->top()) {
      AppendComma(json);
      json->push_back('{');
      AppendChatToken(top, json);
      json->push_back('}');
    }
    json->append("]}");
  }
  json->append("],\"refusal\":null}");
}

void AppendPromptLogprobs(const Positions& positions, std::string* json) {
  json->push_back('[');
  for (const v1::TokenLogprobs* position : positions) {
    AppendComma(json);
    if (!position->token().has_logprob()) {
      json->append("null");
      continue;
    }
    json->push_back('{');
    AppendRanked(position->token(), json);
    for (const v1::Logprob& top : position->top()) {
      if (top.token_id() != position->token().token_id()) AppendRanked(top, json);
    }
    json->push_back('}');
  }
  json->push_back(']');
}

}  // namespace pagoda::daemon::openai
