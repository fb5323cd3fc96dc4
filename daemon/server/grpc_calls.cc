#include "daemon/server/grpc_calls.h"

#include <chrono>
#include <utility>

#include <grpc/grpc.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/server/message_bytes.h"
#include "daemon/server/rpc_error.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

// Clients with gRPC's retry policy wait this long before they try again (gRFC A6).
constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";
constexpr char kTraceparentKey[] = "traceparent";

// What the client gave for its trace; the context tells it the same.
std::string TakeTraceparent(grpc::CallbackServerContext* context) {
  const auto found = context->client_metadata().find(kTraceparentKey);
  if (found == context->client_metadata().end()) return "";
  const auto valid = ValidTraceparent({found->second.data(), found->second.size()});
  if (!valid.has_value()) return "";
  context->AddInitialMetadata(kTraceparentKey, *valid);
  return *valid;
}

GenerationCall::Options OptionsOf(const CallServices& services,
                                  grpc::CallbackServerContext* context,
                                  Caller caller,
                                  bool stream,
                                  Api api = Api::kGrpc) {
  GenerationCall::Options options = {.caller = std::move(caller),
                                     .key = services.calls->NextKey(),
                                     .stream = stream,
                                     .api = api,
                                     .traceparent = TakeTraceparent(context)};
  const auto deadline = context->deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) {
    const std::chrono::nanoseconds left = deadline - std::chrono::system_clock::now();
    options.deadline_ns = services.clock->NowNs() + left.count();
  }
  return options;
}

// What the client is told.
grpc::Status EndOf(const absl::Status& status, grpc::CallbackServerContext* context) {
  if (const auto delay = RetryDelay(status)) {
    context->AddTrailingMetadata(kPushbackKey, absl::StrCat(absl::ToInt64Milliseconds(*delay)));
  }
  return ToGrpcStatus(status);
}

class RefusedStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  void OnDone() override { delete this; }
};

template <typename Message>
absl::StatusOr<ConvertedRequest> ParseAndConvert(const grpc::ByteBuffer& bytes,
                                                 const ServedModel& model,
                                                 const CallOrigin& origin) {
  Message message;
  PAGODA_RETURN_IF_ERROR(ParseRequest(bytes, model.max_message_bytes, &message));
  return ConvertRequest(message, model, origin);
}

}  // namespace

grpc::ServerUnaryReactor* RefuseCall(const AccessControl& access,
                                     grpc::CallbackServerContext* context,
                                     const absl::Status& why) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  access.Refuse(why, context->peer(), [reactor, why] { reactor->Finish(ToGrpcStatus(why)); });
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RefuseStream(const AccessControl& access,
                                                         const grpc::CallbackServerContext& context,
                                                         const absl::Status& why) {
  auto* const stream = new RefusedStream;
  access.Refuse(why, context.peer(), [stream, why] { stream->Finish(ToGrpcStatus(why)); });
  return stream;
}

GrpcStreamCall::GrpcStreamCall(const CallServices& services,
                               grpc::CallbackServerContext* context,
                               Caller caller,
                               const grpc::ByteBuffer* request,
                               Api api)
    : StreamCall(services,
                 OptionsOf(services, context, std::move(caller), /*stream=*/true, api),
                 /*most_messages_per_write=*/1),
      context_(context),
      request_(request) {}

absl::StatusOr<ConvertedRequest> GrpcStreamCall::Convert(const CallOrigin& origin) {
  return ParseAndConvert<v1::StreamGenerateRequest>(*request_, *services().model, origin);
}

absl::optional<grpc::ByteBuffer> GrpcStreamCall::Render(v1::StreamGenerateResponse* event) {
  return SerializeReply(*event);
}

void GrpcStreamCall::Write(Messages messages, bool more) {
  absl::optional<grpc::ByteBuffer> bytes = Render(&messages.front());
  if (!bytes.has_value()) return HandleWritten();
  in_flight_ = *std::move(bytes);
  // With more to follow the transport may wait for it, so that one packet carries both. Not on the
  // first write: it carries the initial metadata, whose sending gRPC leaves to the next write when
  // the message may wait, and its completion, which that next write waits for, never comes.
  grpc::WriteOptions options;
  if (more && metadata_sent_) options.set_buffer_hint();
  metadata_sent_ = true;
  StartWrite(&in_flight_, options);
}

void GrpcStreamCall::WriteLast(Messages messages) {
  absl::optional<grpc::ByteBuffer> bytes = Render(&messages.front());
  if (!bytes.has_value()) return Finish(absl::OkStatus());
  in_flight_ = *std::move(bytes);
  StartWriteAndFinish(&in_flight_, grpc::WriteOptions(), grpc::Status::OK);
}

void GrpcStreamCall::Finish(const absl::Status& status) {
  ServerWriteReactor::Finish(EndOf(status, context_));
}

void GrpcStreamCall::CutOff(const absl::Status& status) {
  const grpc::Status end = EndOf(status, context_);
  // The status would wait behind the messages that nobody reads; resetting the stream is what frees
  // them.
  grpc_call_cancel_with_status(
      context_->c_call(), GRPC_STATUS_RESOURCE_EXHAUSTED, end.error_message().c_str(), nullptr);
  ServerWriteReactor::Finish(end);
}

GrpcUnaryCall::GrpcUnaryCall(const CallServices& services,
                             grpc::CallbackServerContext* context,
                             Caller caller,
                             const grpc::ByteBuffer* request,
                             grpc::ByteBuffer* response)
    : UnaryCall(services, OptionsOf(services, context, std::move(caller), /*stream=*/false)),
      context_(context),
      request_(request),
      response_(response) {}

absl::StatusOr<ConvertedRequest> GrpcUnaryCall::Convert(const CallOrigin& origin) {
  return ParseAndConvert<v1::GenerateRequest>(*request_, *services().model, origin);
}

void GrpcUnaryCall::Reply(v1::GenerateResponse reply) {
  *response_ = SerializeReply(reply);
  ServerUnaryReactor::Finish(grpc::Status::OK);
}

void GrpcUnaryCall::Finish(const absl::Status& status) {
  ServerUnaryReactor::Finish(EndOf(status, context_));
}

}  // namespace pagoda::daemon
