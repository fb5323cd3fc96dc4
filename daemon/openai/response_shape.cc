#include "daemon/openai/response_shape.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/openai/json_text.h"

namespace pagoda::daemon::openai {

void UsageTotals::Add(const v1::Usage& usage, bool counts_prompt) {
  completion_tokens += usage.completion_tokens();
  if (!counts_prompt) return;
  prompt_tokens += usage.prompt_tokens();
  cached_tokens += usage.cached_tokens();
}

void UsageTotals::Add(const UsageTotals& other) {
  prompt_tokens += other.prompt_tokens;
  completion_tokens += other.completion_tokens;
  cached_tokens += other.cached_tokens;
  reasoning_tokens += other.reasoning_tokens;
}

void AppendUsage(const UsageTotals& usage, std::string* json) {
  absl::StrAppend(json,
                  "{\"prompt_tokens\":",
                  usage.prompt_tokens,
                  ",\"completion_tokens\":",
                  usage.completion_tokens,
                  ",\"total_tokens\":",
                  usage.prompt_tokens + usage.completion_tokens);
  absl::StrAppend(json,
                  ",\"prompt_tokens_details\":{\"cached_tokens\":",
                  usage.cached_tokens,
                  "},\"completion_tokens_details\":{\"reasoning_tokens\":",
                  usage.reasoning_tokens,
                  "}}");
}

void AppendHead(const ResponseShape& shape, bool chunk, std::string* json) {
  json->append("{\"id\":");
  AppendString(shape.id, json);
  json->append(",\"object\":\"");
  if (shape.endpoint == Endpoint::kCompletions) {
    json->append("text_completion");
  } else {
    json->append(chunk ? "chat.completion.chunk" : "chat.completion");
  }
  absl::StrAppend(json, "\",\"created\":", shape.created, ",\"model\":");
  AppendString(shape.model, json);
}

absl::string_view FinishReasonOf(v1::FinishReason reason, bool has_calls) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
    case v1::FINISH_REASON_STOP_SEQUENCE:
      return has_calls ? "tool_calls" : "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return "";
  }
}

void AppendStopReason(const v1::Finished& finished, std::string* json) {
  json->append(",\"stop_reason\":");
  if (finished.has_stop_string()) {
    AppendString(finished.stop_string(), json);
  } else if (finished.has_stop_token_id()) {
    AppendInteger(finished.stop_token_id(), json);
  } else {
    json->append("null");
  }
}

void AppendIds(const google::protobuf::RepeatedField<uint32_t>& ids, std::string* json) {
  json->push_back('[');
  for (const uint32_t id : ids) {
    AppendComma(json);
    AppendInteger(id, json);
  }
  json->push_back(']');
}

std::string ToolCallId(const ResponseShape& shape, uint32_t choice, size_t call) {
  return absl::StrCat("call_", absl::StripPrefix(shape.id, "chatcmpl-"), "_", choice, "_", call);
}

std::unique_ptr<OutputParser> ParserOf(const ResponseShape& shape) {
  if (shape.endpoint == Endpoint::kCompletions) return nullptr;
  return MakeOutputParser(shape.output, shape.reasoning);
}

}  // namespace pagoda::daemon::openai
