#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/openai/generation_request.h"
#include "daemon/openai/json_dump.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon::openai {
namespace {

using nlohmann::ordered_json;

// A part of a message's content: {"type": "text", "text": ...}.
void ReadPart(const JsonFields& part, v1::ChatMessage* message) {
  const std::string type = part.StringOr("type", "text");
  const char* member = type == "refusal" ? "refusal" : "text";
  if (type != "text" && type != "input_text" && type != "refusal") {
    return part.Fail("type", absl::StrCat("expected text, found ", QuotedExtract(type)));
  }
  if (!part.Has(member)) return part.Fail(member, "is missing");
  message->add_content()->set_text(part.StringOr(member, ""));
}

void ReadContent(const JsonFields& fields, v1::ChatMessage* message) {
  const ordered_json* content = fields.Find("content");
  if (content == nullptr) return;
  if (content->is_string()) {
    message->add_content()->set_text(content->get<std::string>());
    return;
  }
  const ordered_json* parts = fields.Array("content");
  if (parts == nullptr) return;
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string path = absl::StrCat(fields.PathOf("content"), "[", i, "]");
    if (!(*parts)[i].is_object()) {
      fields.checker()->Fail(path, absl::StrCat("expected an object, found ", KindOf((*parts)[i])));
      continue;
    }
    ReadPart(JsonFields(&(*parts)[i], path, fields.checker()), message);
  }
}

void ReadMessage(const JsonFields& fields, v1::ChatMessage* message) {
  std::string role = fields.StringOr("role", "");
  if (!fields.Has("role")) fields.Fail("role", "is missing");
  // OpenAI's newer name of what templates know as "system".
  if (role == "developer") role = "system";
  message->set_role(std::move(role));
  ReadContent(fields, message);
  message->set_name(fields.StringOr("name", ""));
  if (const ordered_json* calls = fields.Array("tool_calls"))
    message->set_tool_calls_json(DumpJson(*calls));
  message->set_tool_call_id(fields.StringOr("tool_call_id", ""));
  const char* reasoning = fields.Has("reasoning_content") ? "reasoning_content" : "reasoning";
  message->set_reasoning_content(fields.StringOr(reasoning, ""));
}

void ReadMessages(const JsonFields& fields, v1::Chat* chat) {
  if (!fields.Has("messages")) return fields.Fail("messages", "is missing; expected a list");
  const ordered_json* messages = fields.Array("messages");
  if (messages == nullptr) return;
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string path = absl::StrCat("messages[", i, "]");
    if (!(*messages)[i].is_object()) {
      fields.Fail(path, absl::StrCat("expected an object, found ", KindOf((*messages)[i])));
      continue;
    }
    ReadMessage(JsonFields(&(*messages)[i], path, fields.checker()), chat->add_messages());
  }
}

// A call of any tool, or of the one named, as a schema.
ordered_json CallSchema(const ordered_json& function) {
  ordered_json parameters = function.contains("parameters") && function["parameters"].is_object()
                                ? function["parameters"]
                                : ordered_json{{"type", "object"}};
  return {{"type", "object"},
          {"properties",
           {{"name", {{"type", "string"}, {"enum", ordered_json::array({function["name"]})}}},
            {"parameters", std::move(parameters)}}},
          {"required", ordered_json::array({"name", "parameters"})},
          {"additionalProperties", false}};
}

// The tools of a request and what may be done with them.
class ToolReader {
 public:
  ToolReader(const JsonFields& fields, GenerationRequest* request, v1::GenerateRequest* call)
      : fields_(fields), request_(request), call_(call) {}

  void Read() {
    for (const char* old : {"functions", "function_call"}) {
      if (fields_.Has(old)) fields_.Fail(old, "is not supported; use tools and tool_choice");
    }
    const ordered_json* tools = fields_.Array("tools");
    if (tools != nullptr) ReadTools(*tools);
    const ordered_json* choice = fields_.Find("tool_choice");
    if (choice == nullptr || choice->is_string()) {
      ReadMode(choice == nullptr ? "auto" : choice->get<std::string>());
    } else if (fields_.Object("tool_choice") != nullptr) {
      ReadNamed(*choice);
    }
    if (tools != nullptr && !functions_.empty() && !is_off_)
      call_->mutable_prompt()->mutable_chat()->set_tools_json(DumpJson(*tools));
  }

 private:
  void ReadTools(const ordered_json& tools) {
    for (size_t i = 0; i < tools.size(); ++i) {
      const std::string path = absl::StrCat("tools[", i, "].function");
      const ordered_json* function = nullptr;
      if (tools[i].is_object() && tools[i].contains("function")) function = &tools[i]["function"];
      if (function == nullptr || !function->is_object() || !function->contains("name") ||
          !(*function)["name"].is_string()) {
        fields_.Fail(path, "expected an object with a name");
      } else {
        functions_.push_back(function);
      }
    }
  }

  void ReadMode(const std::string& mode) {
    if (mode == "none") {
      is_off_ = true;
    } else if (mode == "auto") {
      for (const ordered_json* function : functions_)
        request_->shape.tools.push_back((*function)["name"].get<std::string>());
    } else if (mode == "required") {
      if (functions_.empty()) return fields_.Fail("tool_choice", "\"required\" needs tools");
      ordered_json calls = ordered_json::array();
      for (const ordered_json* function : functions_) calls.push_back(CallSchema(*function));
      ordered_json item = calls.size() == 1 ? calls[0] : ordered_json{{"anyOf", std::move(calls)}};
      Constrain({{"type", "array"}, {"minItems", 1}, {"items", std::move(item)}});
      request_->shape.requires_calls = true;
    } else {
      fields_.Fail(
          "tool_choice",
          absl::StrCat("expected none, auto, required or a tool, found ", QuotedExtract(mode)));
    }
  }

  void ReadNamed(const ordered_json& choice) {
    std::string name;
    if (choice.contains("function") && choice["function"].is_object() &&
        choice["function"].contains("name") && choice["function"]["name"].is_string()) {
      name = choice["function"]["name"].get<std::string>();
    }
    const auto found =
        std::find_if(functions_.begin(), functions_.end(), [&name](const ordered_json* function) {
          return (*function)["name"] == name;
        });
    if (found == functions_.end()) {
      return fields_.Fail("tool_choice.function.name",
                          absl::StrCat(QuotedExtract(name), " is none of the tools"));
    }
    const ordered_json& function = **found;
    Constrain(function.contains("parameters") && function["parameters"].is_object()
                  ? function["parameters"]
                  : ordered_json{{"type", "object"}});
    request_->shape.forced_tool = name;
  }

  void Constrain(const ordered_json& schema) {
    if (call_->sampling().constraint_case() != v1::SamplingParams::CONSTRAINT_NOT_SET) {
      return fields_.Fail("tool_choice",
                          "a tool that must be called excludes another form of the output");
    }
    call_->mutable_sampling()->set_json_schema(DumpJson(schema));
    request_->shape.form_field = "tools";
  }

  const JsonFields& fields_;
  GenerationRequest* const request_;
  v1::GenerateRequest* const call_;
  std::vector<const ordered_json*> functions_;
  bool is_off_ = false;
};

void ReadLogprobs(const JsonFields& fields, v1::OutputOptions* output) {
  const bool wanted = fields.BoolOr("logprobs", false);
  const auto top = fields.Integer("top_logprobs", 0, INT32_MAX);
  if (wanted) {
    output->set_logprobs(static_cast<int32_t>(top.value_or(0)));
  } else if (top.value_or(0) > 0) {
    fields.Fail("top_logprobs", "needs \"logprobs\": true");
  }
}

}  // namespace

absl::StatusOr<GenerationRequest> ParseChat(absl::string_view body) {
  PAGODA_ASSIGN_OR_RETURN(const ordered_json json, ParseBody(body));
  FieldChecker checker;
  const JsonFields fields(&json, "", &checker);
  GenerationRequest request = {.endpoint = Endpoint::kChat};
  v1::GenerateRequest& call = request.calls.emplace_back();
  ReadCommonFields(fields, &request, &call);
  const char* most = fields.Has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  if (const auto tokens = fields.Count(most)) call.mutable_stopping()->set_max_tokens(*tokens);
  ReadLogprobs(fields, call.mutable_output());
  request.shape.is_constrained =
      call.sampling().constraint_case() != v1::SamplingParams::CONSTRAINT_NOT_SET;

  v1::Chat* chat = call.mutable_prompt()->mutable_chat();
  ReadMessages(fields, chat);
  ToolReader(fields, &request, &call).Read();
  if (const auto opens = fields.Bool("add_generation_prompt"))
    chat->set_add_generation_prompt(*opens);
  chat->set_continue_final_message(fields.BoolOr("continue_final_message", false));
  if (const ordered_json* arguments = fields.Object("chat_template_kwargs"))
    chat->set_template_arguments_json(DumpJson(*arguments));
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  return request;
}

}  // namespace pagoda::daemon::openai
