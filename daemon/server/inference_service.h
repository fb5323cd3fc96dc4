#pragma once

#include <atomic>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "daemon/server/generation_call.h"
#include "daemon/server/served_model.h"
#include "daemon/server/serving_state.h"
#include "daemon/server/text_pool.h"
#include "pagoda/v1/inference.grpc.pb.h"

namespace pagoda::daemon {

// pagoda.v1.InferenceService. Requests arrive as bytes and are parsed by text threads: gRPC's own
// few threads only hand over, and its own parsing answers INTERNAL or UNIMPLEMENTED to what is the
// client's mistake.
class InferenceService final : public v1::InferenceService::WithRawCallbackMethod_Generate<
                                   v1::InferenceService::WithRawCallbackMethod_StreamGenerate<
                                       v1::InferenceService::WithRawCallbackMethod_Tokenize<
                                           v1::InferenceService::WithRawCallbackMethod_Detokenize<
                                               v1::InferenceService::WithRawCallbackMethod_GetModel<
                                                   v1::InferenceService::Service>>>>> {
 public:
  // All outlive the service. Calls are refused with UNAVAILABLE unless the state is kReady; before,
  // `services` need not be complete.
  InferenceService(const CallServices* services,
                   TextPool* text_pool,
                   const std::atomic<ServingState>* state)
      : services_(services), text_pool_(text_pool), state_(state) {}

  // gRPC's threads.
  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamGenerate(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

 private:
  // Posts the call's admission to a text thread, or ends it.
  void PostAdmission(GenerationCall* call, const grpc::ByteBuffer* request);
  // Of a caller of that class, runs `handle` on a text thread and answers with what it says.
  grpc::ServerUnaryReactor* Answer(AccessClass access,
                                   grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   absl::AnyInvocable<absl::Status()> handle);

  const CallServices* const services_;
  TextPool* const text_pool_;
  const std::atomic<ServingState>* const state_;
};

// OK, or why a call cannot be served in that state.
absl::Status CheckReady(ServingState state);

// The bodies of the small calls; pure functions of the model. Errors are those of rpc_error.h.
absl::StatusOr<v1::TokenizeResponse> TokenizeText(const v1::TokenizeRequest& request,
                                                  const ServedModel& model);
absl::StatusOr<v1::DetokenizeResponse> DetokenizeIds(const v1::DetokenizeRequest& request,
                                                     const ServedModel& model);
absl::StatusOr<v1::GetModelResponse> DescribeModel(const v1::GetModelRequest& request,
                                                   const ServedModel& model);

}  // namespace pagoda::daemon
