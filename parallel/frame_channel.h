#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "parallel/frame.h"
#include "parallel/unique_fd.h"

namespace pagoda::parallel {

// One end of the connection of the daemon and a worker: protobuf messages in frames over a
// connected stream socket. Sending and receiving never block: what the socket does not take at once
// is kept and goes out with Flush, so two ends that both send large messages cannot wait for each
// other. Only Wait sleeps. Thread-compatible.
//
// UNAVAILABLE: the peer is gone. DATA_LOSS: the peer sent what is no frame or no message.
class FrameChannel {
 public:
  // `socket` is one end of a socketpair.
  explicit FrameChannel(UniqueFd socket) : socket_(std::move(socket)) {}

  // Sends a message, or as much of it as the socket takes. RESOURCE_EXHAUSTED, with nothing sent,
  // when the message is larger than a frame may be or the peer has stopped reading long ago.
  absl::Status Send(const google::protobuf::MessageLite& message);
  // Sends more of what Send left.
  absl::Status Flush();
  bool has_pending_output() const { return output_.size() > 0; }

  // Takes the next message if a whole one has come: true if it did.
  absl::StatusOr<bool> Receive(google::protobuf::MessageLite* message);

  // Busy-waits until Receive has news (a message, or a part or the end of one): true, or for
  // `duration_ns`: false.
  bool Spin(int64_t duration_ns);
  // Sleeps until Receive may have news or pending output can go on, at most `timeout_ns`
  // (INT64_MAX: no limit).
  void Wait(int64_t timeout_ns);
  // Wait and Flush until nothing is pending: DEADLINE_EXCEEDED after `timeout_ns`.
  absl::Status FlushWithin(int64_t timeout_ns);

  int fd() const { return socket_.get(); }
  // What poll() is to wait for.
  int16_t poll_events() const;

 private:
  enum class ReadOutcome { kBytes, kNothing, kEnd };
  // One read from the socket into the parser.
  ReadOutcome Read();

  UniqueFd socket_;
  FrameParser parser_;
  FrameBuffer output_;
  uint64_t next_sequence_ = 1;
  // Why nothing more can be read; parsed bytes are still handed out first.
  absl::Status end_;
};

}  // namespace pagoda::parallel
