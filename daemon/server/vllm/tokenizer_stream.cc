#include "daemon/server/vllm/tokenizer_stream.h"

#include <algorithm>
#include <utility>

#include "daemon/server/message_bytes.h"
#include "daemon/server/rpc_error.h"
#include "smg/grpc/common/common.pb.h"

namespace pagoda::daemon {
namespace {

constexpr size_t kTokenizerPieceBytes = size_t{64} << 10;

}  // namespace

void TokenizerStream::Begin(absl::StatusOr<std::shared_ptr<const TokenizerBundle>> bundle) {
  if (!bundle.ok()) return Finish(ToGrpcStatus(bundle.status()));
  bundle_ = *std::move(bundle);
  StartNextPiece();
}

void TokenizerStream::StartNextPiece() {
  smg::grpc::common::GetTokenizerChunk chunk;
  const size_t num_bytes = std::min(bundle_->zip.size() - num_sent_bytes_, kTokenizerPieceBytes);
  chunk.set_data(bundle_->zip.data() + num_sent_bytes_, num_bytes);
  num_sent_bytes_ += num_bytes;
  const bool is_last = num_sent_bytes_ == bundle_->zip.size();
  if (is_last) chunk.set_sha256(bundle_->sha256);
  in_flight_ = SerializeReply(chunk);
  if (is_last) {
    StartWriteAndFinish(&in_flight_, grpc::WriteOptions(), grpc::Status::OK);
  } else {
    StartWrite(&in_flight_);
  }
}

void TokenizerStream::OnWriteDone(bool ok) {
  if (num_sent_bytes_ == bundle_->zip.size()) return;  // its end goes with it
  if (ok) return StartNextPiece();
  Finish(ToGrpcStatus(CallCancelledError()));
}

}  // namespace pagoda::daemon
