#include "daemon/server/inference_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/server/grpc_calls.h"
#include "daemon/server/message_bytes.h"
#include "daemon/server/request_fields.h"
#include "daemon/server/rpc_error.h"
#include "daemon/server/rpc_routes.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

absl::Status CheckModelName(const std::string& name, const ServedModel& model) {
  return model.Answers(name) ? absl::OkStatus() : ModelNotFoundError(name, model.name());
}

// Parses, handles, serialises: the body of a unary call that the engine has no part in.
template <typename Request, typename Response>
absl::Status HandleBytes(absl::StatusOr<Response> (*handle)(const Request&, const ServedModel&),
                         const ServedModel& model,
                         const grpc::ByteBuffer& request_bytes,
                         grpc::ByteBuffer* response_bytes) {
  Request request;
  PAGODA_RETURN_IF_ERROR(ParseRequest(request_bytes, model.max_message_bytes, &request));
  PAGODA_RETURN_IF_ERROR(CheckModelName(request.model(), model));
  PAGODA_ASSIGN_OR_RETURN(const Response response, handle(request, model));
  *response_bytes = SerializeReply(response);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReady(ServingState state) {
  switch (state) {
    case ServingState::kLoading:
      return LoadingError();
    case ServingState::kReady:
    case ServingState::kRecovering:
      return absl::OkStatus();
    case ServingState::kDraining:
      return DrainingError();
    case ServingState::kFailed:
      return WorkerLostError();
  }
  return InternalError();
}

void InferenceService::PostAdmission(GenerationCall* call, const grpc::ByteBuffer* request) {
  absl::Status status = CheckReady(state_->load(std::memory_order_acquire));
  // gRPC keeps the request until it is done with the call, which is after Admit.
  if (status.ok()) status = text_pool_->Post(request->Length(), [call] { call->Admit(); });
  if (!status.ok()) call->End(status);
}

grpc::ServerUnaryReactor* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  constexpr AccessClass kAccess = AccessOf(kInferenceRoutes, "Generate");
  absl::StatusOr<Caller> caller = services_->access->Check(kAccess, *context);
  if (!caller.ok()) return RefuseCall(*services_->access, context, caller.status());
  auto* call = new GrpcUnaryCall(*services_, context, *std::move(caller), request, response);
  PostAdmission(call, request);
  return call;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::StreamGenerate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  constexpr AccessClass kAccess = AccessOf(kInferenceRoutes, "StreamGenerate");
  absl::StatusOr<Caller> caller = services_->access->Check(kAccess, *context);
  if (!caller.ok()) return RefuseStream(*services_->access, *context, caller.status());
  auto* call = new GrpcStreamCall(*services_, context, *std::move(caller), request);
  PostAdmission(call, request);
  return call;
}

grpc::ServerUnaryReactor* InferenceService::Answer(AccessClass access,
                                                   grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request,
                                                   absl::AnyInvocable<absl::Status()> handle) {
  const absl::Status admitted = services_->access->Check(access, *context).status();
  if (!admitted.ok()) return RefuseCall(*services_->access, context, admitted);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = CheckReady(state_->load(std::memory_order_acquire));
  if (status.ok()) {
    status = text_pool_->Post(request->Length(), [reactor, handle = std::move(handle)]() mutable {
      reactor->Finish(ToGrpcStatus(handle()));
    });
  }
  if (!status.ok()) reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Answer(
      AccessOf(kInferenceRoutes, "Tokenize"), context, request, [this, request, response] {
        return HandleBytes(&TokenizeText, *services_->model, *request, response);
      });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return Answer(
      AccessOf(kInferenceRoutes, "Detokenize"), context, request, [this, request, response] {
        return HandleBytes(&DetokenizeIds, *services_->model, *request, response);
      });
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Answer(
      AccessOf(kInferenceRoutes, "GetModel"), context, request, [this, request, response] {
        return HandleBytes(&DescribeModel, *services_->model, *request, response);
      });
}

absl::StatusOr<v1::TokenizeResponse> TokenizeText(const v1::TokenizeRequest& request,
                                                  const ServedModel& model) {
  if (model.tokenizer == nullptr) return NoTokenizerError("Tokenize");
  PAGODA_ASSIGN_OR_RETURN(const std::vector<engine::TokenId> ids,
                          EncodeText("text",
                                     request.text(),
                                     {.add_special_tokens = !request.has_add_special_tokens() ||
                                                            request.add_special_tokens(),
                                      .parse_special_tokens = request.parse_special_tokens()},
                                     *model.tokenizer));
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(ids.begin(), ids.end());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> DetokenizeIds(const v1::DetokenizeRequest& request,
                                                     const ServedModel& model) {
  if (model.tokenizer == nullptr) return NoTokenizerError("Detokenize");
  FieldChecker checker;
  std::vector<engine::TokenId> ids;
  ids.reserve(request.token_ids_size());
  for (int i = 0; i < request.token_ids_size() && checker.ok(); ++i) {
    const uint32_t id = request.token_ids(i);
    if (id < static_cast<uint32_t>(model.num_known_ids)) {
      ids.push_back(static_cast<engine::TokenId>(id));
    } else {
      checker.CheckTokenId(absl::StrCat("token_ids[", i, "]"), id, model.num_known_ids);
    }
  }
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  v1::DetokenizeResponse response;
  response.set_text(model.tokenizer->Decode(
      ids, !request.has_skip_special_tokens() || request.skip_special_tokens()));
  return response;
}

absl::StatusOr<v1::GetModelResponse> DescribeModel(const v1::GetModelRequest& /*request*/,
                                                   const ServedModel& model) {
  v1::GetModelResponse response;
  response.mutable_served_names()->Add(model.names.begin(), model.names.end());
  response.set_architecture(model.config.architecture);
  response.set_dtype(model.dtype);
  response.set_device(model.device);
  response.set_vocab_size(static_cast<uint32_t>(model.config.vocab_size));
  response.set_max_context_tokens(static_cast<uint32_t>(model.max_context_tokens));
  response.set_has_tokenizer(model.tokenizer != nullptr);
  response.set_has_chat_template(model.tokenizer != nullptr && model.chat_template != nullptr);
  response.mutable_eos_token_ids()->Add(model.eos_token_ids.begin(), model.eos_token_ids.end());
  absl::optional<engine::TokenId> bos = model.config.bos_token_id;
  if (model.tokenizer != nullptr && model.tokenizer->bos_token_id().has_value())
    bos = model.tokenizer->bos_token_id();
  if (bos.has_value()) response.set_bos_token_id(static_cast<uint32_t>(*bos));
  *response.mutable_default_sampling() = DefaultSampling(model);
  response.set_kv_block_tokens(static_cast<uint32_t>(model.kv_block_tokens));
  response.set_kv_blocks(static_cast<uint32_t>(model.num_kv_blocks));
  response.set_max_logprobs(model.limits.max_logprobs());
  response.set_max_sequences(static_cast<uint32_t>(model.max_sequences));
  response.set_parameters(model.num_parameters);
  return response;
}

}  // namespace pagoda::daemon
