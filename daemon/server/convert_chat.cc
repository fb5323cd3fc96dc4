#include "daemon/server/convert_chat.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/server/request_fields.h"
#include "engine/text/chat_json.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace pagoda::daemon {
namespace {

using nlohmann::ordered_json;

absl::Status ChatError(absl::string_view field, absl::string_view description) {
  FieldChecker checker;
  checker.Fail(absl::StrCat("prompt.chat", field), description);
  return checker.ToStatus();
}

// JSON in a string field, of the type that `expected` names.
absl::StatusOr<ordered_json> ParseField(absl::string_view field,
                                        const std::string& text,
                                        ordered_json::value_t expected) {
  absl::StatusOr<ordered_json> value = engine::ParseChatJson(text);
  if (!value.ok()) return ChatError(field, value.status().message());
  if (value->type() != expected) {
    return ChatError(field,
                     absl::StrCat("expected a JSON ",
                                  expected == ordered_json::value_t::array ? "array" : "object",
                                  ", found a JSON ",
                                  value->type_name()));
  }
  return value;
}

// Templates print arguments as JSON themselves, so they want the value; OpenAI's shape has its
// text.
void ParseCallArguments(ordered_json* tool_calls) {
  for (ordered_json& call : *tool_calls) {
    if (!call.is_object()) continue;
    ordered_json& function = call.contains("function") ? call["function"] : call;
    if (!function.is_object() || !function.contains("arguments")) continue;
    ordered_json& arguments = function["arguments"];
    if (!arguments.is_string()) continue;
    auto parsed = engine::ParseChatJson(arguments.get_ref<const std::string&>());
    if (parsed.ok() && parsed->is_object()) arguments = *std::move(parsed);
  }
}

ordered_json ContentOf(const v1::ChatMessage& message, bool takes_parts) {
  if (message.content().empty()) return nullptr;
  if (message.content_size() == 1) return message.content(0).text();
  if (!takes_parts) {
    std::string joined;
    for (const v1::ContentPart& part : message.content())
      absl::StrAppend(&joined, joined.empty() ? "" : "\n", part.text());
    return joined;
  }
  ordered_json parts = ordered_json::array();
  for (const v1::ContentPart& part : message.content())
    parts.push_back({{"type", "text"}, {"text", part.text()}});
  return parts;
}

absl::StatusOr<ordered_json> MessageOf(const v1::ChatMessage& message,
                                       absl::string_view field,
                                       bool takes_parts) {
  if (message.role().empty())
    return ChatError(absl::StrCat(field, ".role"), "is empty; expected \"user\" or another role");
  for (int i = 0; i < message.content_size(); ++i) {
    if (message.content(i).part_case() != v1::ContentPart::kText)
      return ChatError(absl::StrCat(field, ".content[", i, "]"), "holds no text");
  }
  ordered_json json = {{"role", message.role()}, {"content", ContentOf(message, takes_parts)}};
  if (!message.name().empty()) json["name"] = message.name();
  if (!message.tool_calls_json().empty()) {
    PAGODA_ASSIGN_OR_RETURN(ordered_json calls,
                            ParseField(absl::StrCat(field, ".tool_calls_json"),
                                       message.tool_calls_json(),
                                       ordered_json::value_t::array));
    ParseCallArguments(&calls);
    if (!calls.empty()) json["tool_calls"] = std::move(calls);
  }
  if (!message.tool_call_id().empty()) json["tool_call_id"] = message.tool_call_id();
  if (!message.reasoning_content().empty()) json["reasoning_content"] = message.reasoning_content();
  return json;
}

// Whether an assistant turn is opened.
absl::StatusOr<bool> OpensTurn(const v1::Chat& chat) {
  const bool asked = chat.has_add_generation_prompt() && chat.add_generation_prompt();
  if (chat.continue_final_message() && asked) {
    return ChatError(".add_generation_prompt",
                     "excludes continue_final_message: a turn is either opened or continued");
  }
  return asked || (!chat.has_add_generation_prompt() && !chat.continue_final_message());
}

}  // namespace

absl::StatusOr<engine::RenderedChat> RenderChat(const v1::Chat& chat, const ServedModel& model) {
  if (model.tokenizer == nullptr)
    return ChatError("", "the model has no tokenizer.json; send prompt.token_ids");
  if (model.chat_template == nullptr) {
    return ChatError("",
                     "the model has no chat template (chat_template.jinja or "
                     "tokenizer_config.json); send prompt.text");
  }
  if (chat.messages().empty()) return ChatError(".messages", "is empty; expected a message");
  const bool takes_parts = model.chat_template->takes_content_parts();
  ordered_json messages = ordered_json::array();
  for (int i = 0; i < chat.messages_size(); ++i) {
    PAGODA_ASSIGN_OR_RETURN(
        ordered_json message,
        MessageOf(chat.messages(i), absl::StrCat(".messages[", i, "]"), takes_parts));
    messages.push_back(std::move(message));
  }
  engine::ChatInput input = {.messages = &messages,
                             .continue_final_message = chat.continue_final_message(),
                             .now_seconds = absl::ToUnixSeconds(absl::Now())};
  PAGODA_ASSIGN_OR_RETURN(input.add_generation_prompt, OpensTurn(chat));
  ordered_json tools, arguments;
  if (!chat.tools_json().empty()) {
    PAGODA_ASSIGN_OR_RETURN(
        tools, ParseField(".tools_json", chat.tools_json(), ordered_json::value_t::array));
    if (!tools.empty()) input.tools = &tools;
  }
  if (!chat.template_arguments_json().empty()) {
    PAGODA_ASSIGN_OR_RETURN(arguments,
                            ParseField(".template_arguments_json",
                                       chat.template_arguments_json(),
                                       ordered_json::value_t::object));
    input.arguments = &arguments;
  }
  auto rendered = model.chat_template->Render(input);
  if (!rendered.ok()) return ChatError("", rendered.status().message());
  return rendered;
}

}  // namespace pagoda::daemon
