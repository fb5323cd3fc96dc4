#pragma once

#include "daemon/server/grpc_calls.h"
#include "daemon/server/vllm/reply_translation.h"

namespace pagoda::daemon {

// A Generate call of the engine protocol: one of pagoda.v1, translated. It streams within the
// daemon whether the client wants chunks or not.
class EngineGenerateCall final : public GrpcStreamCall {
 public:
  using GrpcStreamCall::GrpcStreamCall;

 private:
  absl::StatusOr<ConvertedRequest> Convert(const CallOrigin& origin) override;
  absl::optional<grpc::ByteBuffer> Render(v1::StreamGenerateResponse* event) override;
  absl::Status Restate(absl::Status invalid) override;
  void Finish(const absl::Status& status) override;

  absl::optional<ReplyTranslator> replies_;  // once the request is understood
};

}  // namespace pagoda::daemon
