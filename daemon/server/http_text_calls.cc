#include "daemon/server/http_text_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/openai/generation_request.h"
#include "daemon/openai/json_fields.h"
#include "daemon/openai/json_text.h"
#include "daemon/openai/response_shape.h"
#include "daemon/server/convert_request.h"
#include "daemon/server/inference_service.h"
#include "daemon/server/rpc_error.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

using openai::JsonFields;

HttpReply ReplyOf(const absl::StatusOr<std::string>& json) {
  if (!json.ok()) return ErrorReply(openai::ToHttpError(json.status()));
  return {.body = *json};
}

absl::Status CheckModel(const JsonFields& fields, const ServedModel& model) {
  const std::string name = fields.StringOr("model", "");
  return model.Answers(name) ? absl::OkStatus() : ModelNotFoundError(name, model.name());
}

// A chat's ids, as a chat completion of the same messages would be given them.
absl::StatusOr<v1::TokenizeResponse> TokenizeChat(const std::string& body,
                                                  const ServedModel& model) {
  PAGODA_ASSIGN_OR_RETURN(openai::GenerationRequest request, openai::ParseChat(body));
  PAGODA_ASSIGN_OR_RETURN(const ConvertedRequest converted,
                          ConvertRequest(request.calls.front(), model, CallOrigin()));
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(converted.request.prompt.begin(),
                                    converted.request.prompt.end());
  return response;
}

absl::StatusOr<v1::TokenizeResponse> Tokenize(const std::string& body, const ServedModel& model) {
  PAGODA_ASSIGN_OR_RETURN(const nlohmann::ordered_json json, openai::ParseBody(body));
  FieldChecker checker;
  const JsonFields fields(&json, "", &checker);
  PAGODA_RETURN_IF_ERROR(CheckModel(fields, model));
  if (fields.Has("messages")) return TokenizeChat(body, model);
  if (!fields.Has("prompt")) fields.Fail("prompt", "is missing; expected a string, or messages");
  v1::TokenizeRequest request;
  request.set_text(fields.StringOr("prompt", ""));
  if (const auto adds = fields.Bool("add_special_tokens")) request.set_add_special_tokens(*adds);
  request.set_parse_special_tokens(fields.BoolOr("parse_special_tokens", false));
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  return TokenizeText(request, model);
}

absl::StatusOr<std::string> TokenizeJson(const std::string& body, const ServedModel& model) {
  PAGODA_ASSIGN_OR_RETURN(const v1::TokenizeResponse response, Tokenize(body, model));
  std::string out = absl::StrCat("{\"count\":",
                                 response.token_ids_size(),
                                 ",\"max_model_len\":",
                                 model.max_context_tokens,
                                 ",\"tokens\":");
  openai::AppendIds(response.token_ids(), &out);
  out.push_back('}');
  return out;
}

absl::StatusOr<std::string> DetokenizeJson(const std::string& body, const ServedModel& model) {
  PAGODA_ASSIGN_OR_RETURN(const nlohmann::ordered_json json, openai::ParseBody(body));
  FieldChecker checker;
  const JsonFields fields(&json, "", &checker);
  PAGODA_RETURN_IF_ERROR(CheckModel(fields, model));
  if (!fields.Has("tokens")) fields.Fail("tokens", "is missing; expected a list of token ids");
  v1::DetokenizeRequest request;
  for (const uint32_t id : fields.Ids("tokens")) request.add_token_ids(id);
  request.set_skip_special_tokens(fields.BoolOr("skip_special_tokens", false));
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  PAGODA_ASSIGN_OR_RETURN(const v1::DetokenizeResponse response, DetokenizeIds(request, model));
  std::string out = "{\"prompt\":";
  openai::AppendString(response.text(), &out);
  out.push_back('}');
  return out;
}

}  // namespace

HttpReply TokenizeReply(const std::string& body, const ServedModel& model) {
  return ReplyOf(TokenizeJson(body, model));
}

HttpReply DetokenizeReply(const std::string& body, const ServedModel& model) {
  return ReplyOf(DetokenizeJson(body, model));
}

}  // namespace pagoda::daemon
