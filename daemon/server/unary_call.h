#pragma once

#include "daemon/server/generation_call.h"
#include "grpcpp/support/server_callback.h"

namespace pagoda::daemon {

// A Generate call: gathers every sequence and answers once. A client that goes away ends it as it
// ends a stream.
class UnaryCall final : public grpc::ServerUnaryReactor, public GenerationCall {
 public:
  // `response` is gRPC's and takes the serialised reply.
  UnaryCall(const CallServices& services,
            grpc::CallbackServerContext* context,
            engine::RequestKey key,
            grpc::ByteBuffer* response)
      : GenerationCall(services, context, key, /*stream=*/false), response_(response) {}

  // gRPC's reactions.
  void OnCancel() override { HandleCancel(); }
  void OnDone() override { delete this; }

 private:
  absl::StatusOr<ConvertedRequest> Convert(const grpc::ByteBuffer& request_bytes,
                                           const CallOrigin& origin) override;
  Progress HandleOutput(engine::OutputDelta delta) override;
  void Finish(const grpc::Status& status) override { ServerUnaryReactor::Finish(status); }

  // Owner.
  grpc::ByteBuffer* const response_;
  v1::GenerateResponse reply_;
  v1::Delta output_;         // of the delta at hand
  absl::Status end_status_;  // the first failure among the sequences: then there is no reply
};

}  // namespace pagoda::daemon
