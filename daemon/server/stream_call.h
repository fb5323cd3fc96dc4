#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "daemon/server/generation_call.h"
#include "grpcpp/support/server_callback.h"

namespace pagoda::daemon {

// A StreamGenerate call. At most one write is in flight; output that comes meanwhile is merged into
// the messages that wait, one per sequence, and a reader that lets too much wait is ended.
//
// write_state_ is where the owner and gRPC's thread meet: the owner moves kIdle -> kWriting when it
// starts a write and kWriting -> kWritingMore when output waits behind it; OnWriteDone moves
// kWriting -> kIdle, and leaves kWritingMore for the owner, whom it tells.
class StreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public GenerationCall {
 public:
  StreamCall(const CallServices& services,
             grpc::CallbackServerContext* context,
             engine::RequestKey key)
      : GenerationCall(services, context, key, /*stream=*/true) {}

  Progress ContinueWriting() override;
  absl::optional<int64_t> stalled_since_ns() const override;

  // gRPC's reactions.
  void OnWriteDone(bool ok) override;
  void OnCancel() override { HandleCancel(); }
  void OnDone() override { delete this; }

 private:
  enum class WriteState : uint8_t { kIdle, kWriting, kWritingMore };

  absl::StatusOr<ConvertedRequest> Convert(const grpc::ByteBuffer& request_bytes,
                                           const CallOrigin& origin) override;
  Progress HandleOutput(engine::OutputDelta delta) override;
  void Finish(const grpc::Status& status) override { ServerWriteReactor::Finish(status); }

  void AddStarted(const engine::RequestStarted& started);
  void AddPromptLogprobs(const std::vector<engine::TokenLogprobs>& positions);
  void AddOutput(engine::OutputDelta* delta);
  void AddFinished(int32_t index, const engine::SequenceFinished& finished);
  // The message that the next output of a sequence joins.
  v1::Delta* WaitingDelta(int32_t index);
  // Writes what waits, or notes that it does.
  Progress Advance();
  Progress StartNextWrite();

  std::atomic<WriteState> write_state_{WriteState::kIdle};
  // Owner, but for in_flight_, which is gRPC's while a write is in flight.
  grpc::ByteBuffer in_flight_;
  std::vector<v1::StreamGenerateResponse> waiting_;
  size_t waiting_output_bytes_ = 0;
  int64_t write_start_ns_ = 0;
  bool metadata_sent_ = false;
  bool ended_ = false;       // the engine is done with the request
  absl::Status end_status_;  // the first failure among the sequences
};

}  // namespace pagoda::daemon
