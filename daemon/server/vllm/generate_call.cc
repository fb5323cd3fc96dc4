#include "daemon/server/vllm/generate_call.h"

#include <utility>

#include "daemon/server/message_bytes.h"
#include "daemon/server/vllm/request_translation.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {

absl::StatusOr<ConvertedRequest> EngineGenerateCall::Convert(const CallOrigin& origin) {
  const ServedModel& model = *services().model;
  engine_pb::GenerateRequest request;
  PAGODA_RETURN_IF_ERROR(ParseRequest(request_bytes(), model.max_message_bytes, &request));
  CallOrigin of_client = origin;
  of_client.stream = request.stream();
  replies_.emplace(request.stream());
  PAGODA_ASSIGN_OR_RETURN(const v1::StreamGenerateRequest translated,
                          TranslateRequest(std::move(request), model));
  absl::StatusOr<ConvertedRequest> converted = ConvertRequest(translated, model, of_client);
  if (!converted.ok()) return RestateError(converted.status());
  return converted;
}

absl::optional<grpc::ByteBuffer> EngineGenerateCall::Render(v1::StreamGenerateResponse* event) {
  const auto response = replies_->Translate(std::move(*event));
  if (!response.has_value()) return absl::nullopt;
  return SerializeReply(*response);
}

absl::Status EngineGenerateCall::Restate(absl::Status invalid) { return RestateError(invalid); }

void EngineGenerateCall::Finish(const absl::Status& status) {
  // Who aborts a request has asked for its end, so it is no failure; a message has said it.
  const bool is_told =
      absl::IsCancelled(status) && replies_.has_value() && replies_->has_told_abort();
  GrpcStreamCall::Finish(is_told ? absl::OkStatus() : status);
}

}  // namespace pagoda::daemon
