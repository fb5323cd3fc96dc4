#include "daemon/openai/reply_writer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/openai/json_text.h"
#include "daemon/openai/logprobs_json.h"
#include "daemon/openai/stop_logprobs.h"
#include "daemon/openai/thought_counter.h"

namespace pagoda::daemon::openai {
namespace {

Positions PositionsOf(const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& list) {
  Positions positions;
  for (const v1::TokenLogprobs& position : list) positions.push_back(&position);
  return positions;
}

struct WholeCall {
  std::string name;
  std::string arguments;
};

// Pieces of one text add up to calls.
std::vector<WholeCall> JoinCalls(const std::vector<ToolCallPiece>& pieces) {
  std::vector<WholeCall> calls;
  for (const ToolCallPiece& piece : pieces) {
    if (piece.index >= calls.size()) calls.resize(piece.index + 1);
    calls[piece.index].name += piece.name;
    calls[piece.index].arguments += piece.arguments;
  }
  return calls;
}

// "message":{...}; returns whether it calls tools.
bool AppendMessage(const v1::GenerateResponse::Sequence& sequence,
                   const ResponseShape& shape,
                   uint32_t choice,
                   UsageTotals* usage,
                   std::string* json) {
  ParsedOutput parsed;
  if (const auto parser = ParserOf(shape); parser != nullptr) {
    ThoughtCounter thoughts(shape.tokenizer);
    parser->Feed(sequence.text(), &parsed);
    thoughts.Add(sequence.token_ids(), *parser);
    thoughts.Finish(*parser);
    usage->reasoning_tokens += thoughts.num_tokens();
    parser->Finish(&parsed);
  } else {
    parsed.content = sequence.text();
  }
  json->append("\"message\":{\"role\":\"assistant\",\"content\":");
  if (parsed.content.empty() && !parsed.calls.empty()) {
    json->append("null");
  } else {
    AppendString(parsed.content, json);
  }
  json->append(",\"refusal\":null");
  if (!parsed.reasoning.empty()) {
    json->append(",\"reasoning_content\":");
    AppendString(parsed.reasoning, json);
  }
  const std::vector<WholeCall> calls = JoinCalls(parsed.calls);
  if (!calls.empty()) json->append(",\"tool_calls\":[");
  for (size_t i = 0; i < calls.size(); ++i) {
    json->append(i == 0 ? "{\"id\":" : ",{\"id\":");
    AppendString(ToolCallId(shape, choice, i), json);
    json->append(",\"type\":\"function\",\"function\":{\"name\":");
    AppendString(calls[i].name, json);
    json->append(",\"arguments\":");
    AppendString(calls[i].arguments, json);
    json->append("}}");
  }
  json->append(calls.empty() ? "}" : "]}");
  return !calls.empty();
}

void AppendChoiceLogprobs(const v1::GenerateResponse& reply,
                          const v1::GenerateResponse::Sequence& sequence,
                          const ResponseShape& shape,
                          std::string* json) {
  json->append(",\"logprobs\":");
  if (!shape.logprobs) {
    json->append("null");
    return;
  }
  Positions positions;
  if (shape.echo) positions = PositionsOf(reply.prompt_logprobs());
  for (const v1::TokenLogprobs& position : sequence.logprobs()) positions.push_back(&position);
  if (shape.max_stop_bytes > 0)
    positions.resize(positions.size() -
                     NumStopPositions(positions, sequence.finished().stop_string()));
  if (shape.endpoint == Endpoint::kChat) {
    AppendChatLogprobs(positions, json);
  } else {
    int64_t offset = 0;
    AppendCompletionLogprobs(positions, &offset, json);
  }
}

void AppendModel(absl::string_view name,
                 int64_t created,
                 uint32_t max_context_tokens,
                 std::string* json) {
  json->append("{\"id\":");
  AppendString(name, json);
  absl::StrAppend(
      json, ",\"object\":\"model\",\"created\":", created, ",\"owned_by\":\"pagoda\",\"root\":");
  AppendString(name, json);
  absl::StrAppend(json, ",\"parent\":null,\"max_model_len\":", max_context_tokens, "}");
}

}  // namespace

std::string ChoicesJson(const v1::GenerateResponse& reply,
                        const ResponseShape& shape,
                        uint32_t first_choice,
                        UsageTotals* usage) {
  std::string json;
  for (int i = 0; i < reply.sequences_size(); ++i) {
    const v1::GenerateResponse::Sequence& sequence = reply.sequences(i);
    const uint32_t choice = first_choice + static_cast<uint32_t>(i);
    usage->Add(sequence.finished().usage(), /*counts_prompt=*/i == 0);
    absl::StrAppend(&json, i == 0 ? "" : ",", "{\"index\":", choice, ",");
    bool has_calls = false;
    if (shape.endpoint == Endpoint::kChat) {
      has_calls = AppendMessage(sequence, shape, choice, usage, &json);
    } else {
      json.append("\"text\":");
      AppendString(sequence.text(), &json);
    }
    AppendChoiceLogprobs(reply, sequence, shape, &json);
    json.append(",\"finish_reason\":");
    AppendString(FinishReasonOf(sequence.finished().reason(), has_calls), &json);
    AppendStopReason(sequence.finished(), &json);
    if (shape.return_token_ids) {
      json.append(",\"token_ids\":");
      AppendIds(sequence.token_ids(), &json);
    }
    if (reply.prompt_logprobs_size() > 0 && !shape.echo) {
      json.append(",\"prompt_logprobs\":");
      AppendPromptLogprobs(PositionsOf(reply.prompt_logprobs()), &json);
    }
    json.push_back('}');
  }
  return json;
}

std::string ResponseJson(const ResponseShape& shape,
                         const std::vector<std::string>& choices,
                         const UsageTotals& usage) {
  std::string json;
  AppendHead(shape, /*chunk=*/false, &json);
  absl::StrAppend(&json, ",\"choices\":[", absl::StrJoin(choices, ","), "],\"usage\":");
  AppendUsage(usage, &json);
  json.push_back('}');
  return json;
}

std::string ModelListJson(const std::vector<std::string>& names,
                          int64_t created,
                          uint32_t max_context_tokens) {
  std::string json = "{\"object\":\"list\",\"data\":[";
  for (const std::string& name : names) {
    AppendComma(&json);
    AppendModel(name, created, max_context_tokens, &json);
  }
  json.append("]}");
  return json;
}

std::string ModelJson(absl::string_view name, int64_t created, uint32_t max_context_tokens) {
  std::string json;
  AppendModel(name, created, max_context_tokens, &json);
  return json;
}

}  // namespace pagoda::daemon::openai
