#pragma once

#include "daemon/server/stream_call.h"
#include "daemon/server/unary_call.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

// Generation calls over gRPC. The owner alone starts gRPC's operations; gRPC's threads run the
// reactions. `context` and `request` are gRPC's, which keeps them until OnDone.
namespace pagoda::daemon {

// Answers a call that AccessControl has refused, before it becomes one.
grpc::ServerUnaryReactor* RefuseCall(const AccessControl& access,
                                     grpc::CallbackServerContext* context,
                                     const absl::Status& why);
grpc::ServerWriteReactor<grpc::ByteBuffer>* RefuseStream(const AccessControl& access,
                                                         const grpc::CallbackServerContext& context,
                                                         const absl::Status& why);

class GrpcStreamCall : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public StreamCall {
 public:
  GrpcStreamCall(const CallServices& services,
                 grpc::CallbackServerContext* context,
                 Caller caller,
                 const grpc::ByteBuffer* request,
                 Api api = Api::kGrpc);

  // gRPC's reactions.
  void OnWriteDone(bool /*ok*/) override { HandleWritten(); }
  void OnCancel() override { HandleCancel(); }
  void OnDone() override { delete this; }

 protected:
  absl::StatusOr<ConvertedRequest> Convert(const CallOrigin& origin) override;
  // Owner: what goes to the client for an event; absent: nothing.
  virtual absl::optional<grpc::ByteBuffer> Render(v1::StreamGenerateResponse* event);
  void Finish(const absl::Status& status) override;
  const grpc::ByteBuffer& request_bytes() const { return *request_; }

 private:
  void Write(Messages messages, bool more) override;
  void WriteLast(Messages messages) override;
  void CutOff(const absl::Status& status) override;

  grpc::CallbackServerContext* const context_;
  const grpc::ByteBuffer* const request_;
  grpc::ByteBuffer in_flight_;  // gRPC's while a write is in flight
  bool metadata_sent_ = false;
};

class GrpcUnaryCall final : public grpc::ServerUnaryReactor, public UnaryCall {
 public:
  // `response` is gRPC's and takes the serialised reply.
  GrpcUnaryCall(const CallServices& services,
                grpc::CallbackServerContext* context,
                Caller caller,
                const grpc::ByteBuffer* request,
                grpc::ByteBuffer* response);

  // gRPC's reactions.
  void OnCancel() override { HandleCancel(); }
  void OnDone() override { delete this; }

 private:
  absl::StatusOr<ConvertedRequest> Convert(const CallOrigin& origin) override;
  void Reply(v1::GenerateResponse reply) override;
  void Finish(const absl::Status& status) override;
  void CutOff(const absl::Status& status) override { Finish(status); }

  grpc::CallbackServerContext* const context_;
  const grpc::ByteBuffer* const request_;
  grpc::ByteBuffer* const response_;
};

}  // namespace pagoda::daemon
