#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/openai/generation_request.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon::openai {
namespace {

using nlohmann::ordered_json;

// OpenAI's, kept by everybody since.
constexpr uint32_t kDefaultMaxTokens = 16;

bool IsIdList(const ordered_json& value) {
  return value.is_array() && (value.empty() || value.front().is_number());
}

// A text or a list of token ids.
void ReadPrompt(const ordered_json& value,
                absl::string_view field,
                FieldChecker* checker,
                v1::Prompt* prompt) {
  if (value.is_string()) {
    prompt->set_text(value.get<std::string>());
    return;
  }
  if (!IsIdList(value)) {
    checker->Fail(field,
                  absl::StrCat("expected a string or a list of token ids, found ", KindOf(value)));
    return;
  }
  v1::TokenIds* ids = prompt->mutable_token_ids();
  ids->mutable_ids()->Reserve(static_cast<int>(value.size()));
  for (size_t i = 0; i < value.size(); ++i) {
    const auto id = ReadInteger(value[i], absl::StrCat(field, "[", i, "]"), 0, UINT32_MAX, checker);
    if (!id.has_value()) return;
    ids->add_ids(static_cast<uint32_t>(*id));
  }
}

// The prompts of a request: one text, one list of ids, or a list of either.
std::vector<v1::Prompt> ReadPrompts(const JsonFields& fields) {
  const ordered_json* value = fields.Find("prompt");
  if (value == nullptr) {
    fields.Fail("prompt", "is missing; expected a string, a list of token ids, or a list of these");
    return {};
  }
  if (value->is_string() || (IsIdList(*value) && !value->empty())) {
    std::vector<v1::Prompt> prompts(1);
    ReadPrompt(*value, "prompt", fields.checker(), &prompts.front());
    return prompts;
  }
  if (!value->is_array() || value->empty()) {
    fields.Fail("prompt",
                value->is_array() ? "is an empty list"
                                  : absl::StrCat("expected a string, a list of token ids, or a "
                                                 "list of these, found ",
                                                 KindOf(*value)));
    return {};
  }
  if (!fields.checker()->CheckCount("prompt", value->size(), kMaxPrompts)) return {};
  std::vector<v1::Prompt> prompts(value->size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    ReadPrompt((*value)[i], absl::StrCat("prompt[", i, "]"), fields.checker(), &prompts[i]);
  }
  return prompts;
}

}  // namespace

absl::StatusOr<GenerationRequest> ParseCompletion(absl::string_view body) {
  PAGODA_ASSIGN_OR_RETURN(const ordered_json json, ParseBody(body));
  FieldChecker checker;
  const JsonFields fields(&json, "", &checker);
  GenerationRequest request = {.endpoint = Endpoint::kCompletions};
  v1::GenerateRequest call;
  ReadCommonFields(fields, &request, &call);
  call.mutable_stopping()->set_max_tokens(fields.Count("max_tokens").value_or(kDefaultMaxTokens));
  if (const auto logprobs = fields.Integer("logprobs", 0, INT32_MAX))
    call.mutable_output()->set_logprobs(static_cast<int32_t>(*logprobs));
  call.mutable_output()->set_echo(fields.BoolOr("echo", false));
  if (!fields.StringOr("suffix", "").empty()) fields.Fail("suffix", "is not supported");
  const auto adds_special = fields.Bool("add_special_tokens");

  std::vector<v1::Prompt> prompts = ReadPrompts(fields);
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  for (size_t i = 0; i < prompts.size(); ++i) {
    v1::GenerateRequest& each = request.calls.emplace_back(call);
    each.mutable_prompt()->MergeFrom(prompts[i]);
    if (adds_special.has_value() && prompts[i].has_text())
      each.mutable_prompt()->set_add_special_tokens(*adds_special);
    if (!call.request_id().empty() && prompts.size() > 1)
      each.set_request_id(absl::StrCat(call.request_id(), "-", i));
  }
  return request;
}

}  // namespace pagoda::daemon::openai
