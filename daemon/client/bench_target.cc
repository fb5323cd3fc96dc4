#include "daemon/client/bench_target.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "pagoda/v1/inference.grpc.pb.h"

namespace pagoda::daemon {
namespace {

using nlohmann::json;

constexpr int64_t kBytesPerToken = 4;

// Only as many prompts as there are requests are ever sent.
void DropUnused(BenchOptions* options) {
  const auto num_used = static_cast<size_t>(options->num_requests + options->num_warmup_requests);
  if (options->prompts.size() > num_used) options->prompts.resize(num_used);
}

// The answer's length is wanted, and not known.
bool NeedsCount(const BenchPrompt& prompt) {
  return prompt.output_tokens == 0 && !prompt.reply.empty();
}

grpc::Status CountReplies(v1::InferenceService::Stub& stub, BenchOptions* options) {
  for (BenchPrompt& prompt : options->prompts) {
    if (!NeedsCount(prompt)) continue;
    grpc::ClientContext context;
    PrepareCall(options->connection, &context);
    v1::TokenizeRequest request;
    request.set_model(options->model);
    request.set_text(prompt.reply);
    request.set_add_special_tokens(false);
    v1::TokenizeResponse response;
    const grpc::Status status = stub.Tokenize(&context, request, &response);
    if (!status.ok()) return status;
    prompt.output_tokens = std::max(1, response.token_ids_size());
  }
  return grpc::Status::OK;
}

// As several servers have it; 0: this one has not.
int64_t CountTokens(const HttpTarget& target, const std::string& model, const std::string& text) {
  const json body = {
      {"model", model}, {"prompt", text}, {"content", text}, {"add_special_tokens", false}};
  const auto answer =
      CallHttp(target,
               "/tokenize",
               body.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace));
  if (!answer.ok()) return 0;
  const json parsed = json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return 0;
  if (parsed.contains("count") && parsed["count"].is_number_integer())
    return parsed["count"].get<int64_t>();
  return parsed.contains("tokens") ? static_cast<int64_t>(parsed["tokens"].size()) : 0;
}

void CountReplies(BenchOptions* options) {
  bool can_count = true;
  for (BenchPrompt& prompt : options->prompts) {
    if (!NeedsCount(prompt)) continue;
    int64_t count = can_count ? CountTokens(*options->http, options->model, prompt.reply) : 0;
    can_count = count > 0;
    if (!can_count) count = static_cast<int64_t>(prompt.reply.size()) / kBytesPerToken;
    prompt.output_tokens = std::max<int64_t>(1, count);
  }
}

}  // namespace

grpc::Status AskDaemon(BenchOptions* options, v1::GetModelResponse* model) {
  grpc::ClientContext context;
  PrepareCall(options->connection, &context);
  v1::GetModelRequest request;
  request.set_model(options->model);
  const auto stub = v1::InferenceService::NewStub(OpenChannel(options->connection));
  const grpc::Status status = stub->GetModel(&context, request, model);
  if (!status.ok()) return status;
  DropUnused(options);
  return CountReplies(*stub, options);
}

absl::StatusOr<v1::GetModelResponse> AskHttpServer(BenchOptions* options) {
  const HttpTarget& target = *options->http;
  const std::string route = absl::StrCat(target.path, "/models");
  PAGODA_ASSIGN_OR_RETURN(const std::string answer, CallHttp(target, route, ""));
  if (options->model.empty()) {
    const json models = json::parse(answer, nullptr, /*allow_exceptions=*/false);
    const json::json_pointer first("/data/0/id");
    if (!models.is_object() || !models.contains(first) || !models[first].is_string()) {
      return absl::UnavailableError(
          absl::StrCat(target.host, route, ": the answer lists no model; name one with --model"));
    }
    options->model = models[first].get<std::string>();
  }
  DropUnused(options);
  CountReplies(options);
  v1::GetModelResponse model;
  model.add_served_names(options->model);
  return model;
}

}  // namespace pagoda::daemon
