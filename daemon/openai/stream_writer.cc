#include "daemon/openai/stream_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/openai/json_text.h"

namespace pagoda::daemon::openai {
namespace {

constexpr char kEvent[] = "data: ";
constexpr char kEndOfEvent[] = "\n\n";
// Of an event with a few tokens' text.
constexpr size_t kUsualRestBytes = 128;

std::string HeadOf(const ResponseShape& shape) {
  std::string head = kEvent;
  AppendHead(shape, /*chunk=*/true, &head);
  head.append(",\"choices\":[");
  return head;
}

// `{"index":0,"id":"call_...","type":"function","function":{"name":"f","arguments":""}}`
void AppendCallPiece(const ToolCallPiece& piece,
                     const ResponseShape& shape,
                     uint32_t choice,
                     std::string* json) {
  AppendComma(json);
  absl::StrAppend(json, "{\"index\":", piece.index);
  if (!piece.name.empty()) {
    json->append(",\"id\":");
    AppendString(ToolCallId(shape, choice, piece.index), json);
    json->append(",\"type\":\"function\",\"function\":{\"name\":");
    AppendString(piece.name, json);
    json->append(",\"arguments\":");
  } else {
    json->append(",\"function\":{\"arguments\":");
  }
  AppendString(piece.arguments, json);
  json->append("}}");
}

}  // namespace

const char kDoneEvent[] = "data: [DONE]\n\n";
const char kHeartbeat[] = ": working\n\n";

StreamWriter::StreamWriter(const ResponseShape* shape, uint32_t first_choice, uint32_t num_choices)
    : shape_(*shape), first_choice_(first_choice), head_(HeadOf(*shape)) {
  choices_.reserve(num_choices);
  for (uint32_t i = 0; i < num_choices; ++i) choices_.emplace_back(shape_);
}

void StreamWriter::Append(const v1::StreamGenerateResponse& message, std::string* out) {
  switch (message.event_case()) {
    case v1::StreamGenerateResponse::kStarted:
      num_prompt_tokens_ = message.started().prompt_tokens();
      return AppendStarted(out);
    case v1::StreamGenerateResponse::kDelta:
      return AppendDelta(message.delta(), out);
    case v1::StreamGenerateResponse::kFinished:
      return AppendFinished(message.finished(), out);
    case v1::StreamGenerateResponse::EVENT_NOT_SET:
      return;
  }
}

void StreamWriter::BeginEvent(uint32_t index, std::string* out) const {
  out->reserve(out->size() + head_.size() + kUsualRestBytes);
  absl::StrAppend(out, head_, "{\"index\":", first_choice_ + index);
}

void StreamWriter::EndEvent(uint32_t index, std::string* out) const {
  out->append("}]");
  if (shape_.continuous_usage) {
    out->append(",\"usage\":");
    AppendUsage({.prompt_tokens = num_prompt_tokens_,
                 .completion_tokens = choices_[index].num_tokens,
                 .reasoning_tokens = choices_[index].thoughts.num_tokens()},
                out);
  } else if (shape_.include_usage) {
    out->append(",\"usage\":null");
  }
  absl::StrAppend(out, "}", kEndOfEvent);
}

void StreamWriter::AppendStarted(std::string* out) {
  if (shape_.endpoint != Endpoint::kChat) return;
  for (uint32_t i = 0; i < choices_.size(); ++i) {
    BeginEvent(i, out);
    out->append(
        ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
        "\"finish_reason\":null");
    EndEvent(i, out);
  }
}

void StreamWriter::Echo(Choice* choice) {
  if (shape_.logprobs && !std::exchange(choice->has_echoed, true))
    choice->logprobs.Add(echoed_, /*text_bytes=*/0);
}

void StreamWriter::AppendLogprobs(uint32_t index, std::string* out) {
  out->append(",\"logprobs\":");
  Choice& choice = choices_[index];
  const Positions positions = choice.logprobs.Take();
  if (positions.empty()) {
    out->append("null");
  } else if (shape_.endpoint == Endpoint::kChat) {
    AppendChatLogprobs(positions, out);
  } else {
    AppendCompletionLogprobs(positions, &choice.text_offset, out);
  }
}

void StreamWriter::AppendDelta(const v1::Delta& delta, std::string* out) {
  echoed_.MergeFrom(delta.prompt_logprobs());
  const uint32_t index = delta.index();
  if (index >= choices_.size()) return;
  Choice& choice = choices_[index];
  choice.num_tokens += static_cast<uint64_t>(delta.token_ids_size());
  // A delta without tokens and text only brings more of the prompt's.
  if (delta.token_ids_size() == 0 && delta.text().empty()) return;
  Echo(&choice);
  if (shape_.logprobs) choice.logprobs.Add(delta.logprobs(), delta.text().size());
  const bool says_tokens =
      choice.logprobs.num_ready() > 0 || (shape_.return_token_ids && delta.token_ids_size() > 0);
  if (choice.parser == nullptr) {
    if (!delta.text().empty() || says_tokens) AppendText(index, delta, out);
    return;
  }
  ParsedOutput parsed;
  choice.parser->Feed(delta.text(), &parsed);
  choice.thoughts.Add(delta.token_ids(), *choice.parser);
  if (!parsed.empty() || says_tokens) AppendParsed(index, parsed, &delta, out);
}

void StreamWriter::AppendText(uint32_t index, const v1::Delta& delta, std::string* out) {
  if (shape_.endpoint == Endpoint::kChat) {
    return AppendParsed(index, {.content = delta.text()}, &delta, out);
  }
  BeginEvent(index, out);
  out->append(",\"text\":");
  AppendString(delta.text(), out);
  AppendLogprobs(index, out);
  out->append(",\"finish_reason\":null");
  if (shape_.return_token_ids) {
    out->append(",\"token_ids\":");
    AppendIds(delta.token_ids(), out);
  }
  EndEvent(index, out);
}

void StreamWriter::AppendParsed(uint32_t index,
                                const ParsedOutput& parsed,
                                const v1::Delta* delta,
                                std::string* out) {
  BeginEvent(index, out);
  out->append(",\"delta\":{");
  if (!parsed.reasoning.empty()) {
    out->append("\"reasoning_content\":");
    AppendString(parsed.reasoning, out);
  }
  if (!parsed.content.empty() || (parsed.reasoning.empty() && parsed.calls.empty())) {
    AppendComma(out);
    out->append("\"content\":");
    AppendString(parsed.content, out);
  }
  if (!parsed.calls.empty()) {
    AppendComma(out);
    out->append("\"tool_calls\":[");
    for (const ToolCallPiece& piece : parsed.calls)
      AppendCallPiece(piece, shape_, first_choice_ + index, out);
    out->push_back(']');
  }
  out->push_back('}');
  AppendLogprobs(index, out);
  out->append(",\"finish_reason\":null");
  if (shape_.return_token_ids && delta != nullptr) {
    out->append(",\"token_ids\":");
    AppendIds(delta->token_ids(), out);
  }
  EndEvent(index, out);
}

void StreamWriter::AppendFinished(const v1::Finished& finished, std::string* out) {
  const uint32_t index = finished.index();
  if (index >= choices_.size()) return;
  Choice& choice = choices_[index];
  usage_.Add(finished.usage(), /*counts_prompt=*/index == 0);
  // What ended in another way is told by the error that follows.
  if (FinishReasonOf(finished.reason(), /*has_calls=*/false).empty()) return;
  Echo(&choice);
  choice.logprobs.Finish(finished.stop_string());
  OutputParser* parser = choice.parser.get();
  ParsedOutput parsed;
  if (parser != nullptr) {
    choice.thoughts.Finish(*parser);
    parser->Finish(&parsed);
  }
  usage_.reasoning_tokens += choice.thoughts.num_tokens();
  if (!parsed.empty()) AppendParsed(index, parsed, nullptr, out);
  BeginEvent(index, out);
  out->append(shape_.endpoint == Endpoint::kChat ? ",\"delta\":{}" : ",\"text\":\"\"");
  // A prompt that only echoes has no text that its log-probabilities could come with.
  AppendLogprobs(index, out);
  out->append(",\"finish_reason\":");
  const bool has_calls = parser != nullptr && parser->num_calls() > 0;
  AppendString(FinishReasonOf(finished.reason(), has_calls), out);
  AppendStopReason(finished, out);
  EndEvent(index, out);
}

std::string UsageEvent(const ResponseShape& shape, const UsageTotals& usage) {
  std::string event = HeadOf(shape);
  event.append("],\"usage\":");
  AppendUsage(usage, &event);
  absl::StrAppend(&event, "}", kEndOfEvent);
  return event;
}

std::string ErrorEvent(absl::string_view error_json) {
  return absl::StrCat(kEvent, error_json, kEndOfEvent);
}

}  // namespace pagoda::daemon::openai
