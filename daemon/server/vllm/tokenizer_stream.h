#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/server/vllm/tokenizer_bundle.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace pagoda::daemon {

// A GetTokenizer call: sends a bundle in pieces, each when the one before it has gone. Whoever
// calls Begin owns it until then; gRPC's threads afterwards.
class TokenizerStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // Called once.
  void Begin(absl::StatusOr<std::shared_ptr<const TokenizerBundle>> bundle);

  // gRPC's reactions. A write is in flight from Begin to the end, so its failure tells of a client
  // that is gone.
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  void StartNextPiece();

  std::shared_ptr<const TokenizerBundle> bundle_;
  size_t num_sent_bytes_ = 0;
  grpc::ByteBuffer in_flight_;
};

}  // namespace pagoda::daemon
