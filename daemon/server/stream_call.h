#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "daemon/server/generation_call.h"

namespace pagoda::daemon {

// A call that streams. At most one write is in flight; output that comes meanwhile is merged into
// the messages that wait, one per sequence, and a reader that lets too much wait is ended.
//
// write_state_ is where the owner and the transport's thread meet: the owner moves kIdle ->
// kWriting when it starts a write and kWriting -> kWritingMore when output waits behind it;
// HandleWritten moves kWriting -> kIdle, and leaves kWritingMore for the owner, whom it tells.
class StreamCall : public GenerationCall {
 public:
  // What a write takes is the writer's to change.
  using Messages = absl::Span<v1::StreamGenerateResponse>;

  Progress ContinueWriting() override;
  absl::optional<int64_t> stalled_since_ns() const override;
  // Transport's thread: the write has ended. One that failed means that the client is gone, which
  // HandleCancel says.
  void HandleWritten();

 protected:
  // `most_messages_per_write`: what Write takes at once.
  StreamCall(const CallServices& services, const Options& options, size_t most_messages_per_write)
      : GenerationCall(services, options), most_messages_per_write_(most_messages_per_write) {}

  // Starts a write. `more`: another follows as soon as it has ended.
  virtual void Write(Messages messages, bool more) = 0;
  // The last write of a call that ends well, with its end.
  virtual void WriteLast(Messages messages) = 0;

 private:
  enum class WriteState : uint8_t { kIdle, kWriting, kWritingMore };

  // An event that waits. Output stays as the engine gave it until it is written: as messages it
  // takes several times the memory.
  struct Waiting {
    v1::StreamGenerateResponse message;
    absl::optional<engine::OutputDelta> output;  // to be appended to the message's delta
    size_t output_bytes = 0;
  };

  Progress HandleOutput(engine::OutputDelta delta) override;

  void AddStarted(const engine::RequestStarted& started);
  void AddPromptLogprobs(const std::vector<engine::TokenLogprobs>& positions);
  void AddOutput(engine::OutputDelta* delta);
  void AddFinished(int32_t index, const engine::SequenceFinished& finished);
  // What the next output of a sequence joins; null: nothing.
  Waiting* WaitingDelta(int32_t index);
  // Writes what waits, or notes that it does.
  Progress Advance();
  Progress StartNextWrite();
  std::vector<v1::StreamGenerateResponse> TakeMessages();
  // Whether nothing waits and no write is in flight, so that `delta`, which is nothing but a
  // sequence's output, need not wait either.
  bool CanWriteAtOnce(const engine::OutputDelta& delta) const;
  void WriteAtOnce(engine::OutputDelta* delta);
  void BeginWrite(Messages messages, bool more);

  const size_t most_messages_per_write_;
  std::atomic<WriteState> write_state_{WriteState::kIdle};
  // Owner.
  std::vector<Waiting> waiting_;
  size_t waiting_output_bytes_ = 0;
  size_t in_flight_output_bytes_ = 0;  // of the write that began last
  int64_t write_start_ns_ = 0;
  bool ended_ = false;       // the engine is done with the request
  absl::Status end_status_;  // the first failure among the sequences
};

}  // namespace pagoda::daemon
