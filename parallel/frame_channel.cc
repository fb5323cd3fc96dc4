#include "parallel/frame_channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/status_macros.h"

namespace pagoda::parallel {
namespace {

// A peer that leaves so much unread is not going to read it: two of the largest frames.
constexpr size_t kMaxPendingOutputBytes = 2 * kMaxFramePayloadBytes;

absl::Status PeerGone(absl::string_view detail) {
  return absl::UnavailableError(absl::StrFormat("the other end closed the channel%s", detail));
}

absl::Status SocketError(absl::string_view call, int error) {
  if (error == EPIPE || error == ECONNRESET) return PeerGone("");
  return absl::UnavailableError(
      absl::StrFormat("%s on the channel failed: %s", call, std::strerror(error)));
}

}  // namespace

absl::Status FrameChannel::Send(const google::protobuf::MessageLite& message) {
  const size_t payload_bytes = message.ByteSizeLong();
  if (payload_bytes > kMaxFramePayloadBytes) {
    return absl::ResourceExhaustedError(absl::StrFormat("%s is %u bytes long, expected at most %u",
                                                        message.GetTypeName(),
                                                        payload_bytes,
                                                        kMaxFramePayloadBytes));
  }
  if (output_.size() + payload_bytes > kMaxPendingOutputBytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the other end of the channel left %u bytes unread, expected at most %u",
                        output_.size(),
                        kMaxPendingOutputBytes - payload_bytes));
  }
  output_.Trim();
  char* frame = output_.Reserve(kFrameHeaderBytes + payload_bytes).data();
  char* payload = frame + kFrameHeaderBytes;
  message.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(payload));
  EncodeFrameHeader(next_sequence_++, {payload, payload_bytes}, frame);
  output_.Commit(kFrameHeaderBytes + payload_bytes);
  return Flush();
}

absl::Status FrameChannel::Flush() {
  while (output_.size() > 0) {
    const absl::string_view bytes = output_.data();
    const ssize_t sent = send(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      output_.Consume(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return SocketError("send", errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> FrameChannel::Receive(google::protobuf::MessageLite* message) {
  while (true) {
    absl::string_view payload;
    PAGODA_ASSIGN_OR_RETURN(const bool whole, parser_.Next(&payload));
    if (whole) {
      if (message->ParseFromArray(payload.data(), static_cast<int>(payload.size()))) return true;
      return absl::DataLossError(absl::StrFormat(
          "a frame of %u bytes holds no %s", payload.size(), message->GetTypeName()));
    }
    switch (Read()) {
      case ReadOutcome::kBytes:
        break;
      case ReadOutcome::kNothing:
        return false;
      case ReadOutcome::kEnd:
        return end_;
    }
  }
}

FrameChannel::ReadOutcome FrameChannel::Read() {
  if (!end_.ok()) return ReadOutcome::kEnd;
  const absl::Span<char> space = parser_.Space();
  while (true) {
    const ssize_t received = recv(fd(), space.data(), space.size(), MSG_DONTWAIT);
    if (received > 0) {
      parser_.Commit(static_cast<size_t>(received));
      return ReadOutcome::kBytes;
    }
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && errno == EAGAIN) return ReadOutcome::kNothing;
    if (received < 0) {
      end_ = SocketError("recv", errno);
    } else {
      end_ = PeerGone(parser_.num_pending_bytes() > 0 ? " in the middle of a frame" : "");
    }
    return ReadOutcome::kEnd;
  }
}

bool FrameChannel::Spin(int64_t duration_ns) {
  const Clock& clock = Clock::Monotonic();
  const int64_t end_ns = clock.NowNs() + duration_ns;
  do {
    if (Read() != ReadOutcome::kNothing) return true;
  } while (clock.NowNs() < end_ns);
  return false;
}

int16_t FrameChannel::poll_events() const {
  return static_cast<int16_t>(POLLIN | (has_pending_output() ? POLLOUT : 0));
}

void FrameChannel::Wait(int64_t timeout_ns) {
  if (!end_.ok()) return;
  pollfd entry{.fd = fd(), .events = poll_events(), .revents = 0};
  timespec timeout;
  const int64_t bounded_ns = std::max<int64_t>(timeout_ns, 0);
  timeout.tv_sec = bounded_ns / 1'000'000'000;
  timeout.tv_nsec = bounded_ns % 1'000'000'000;
  const bool forever = timeout_ns == std::numeric_limits<int64_t>::max();
  ppoll(&entry, 1, forever ? nullptr : &timeout, nullptr);
}

absl::Status FrameChannel::FlushWithin(int64_t timeout_ns) {
  const Clock& clock = Clock::Monotonic();
  const int64_t end_ns = clock.NowNs() + timeout_ns;
  while (true) {
    PAGODA_RETURN_IF_ERROR(Flush());
    if (!has_pending_output()) return absl::OkStatus();
    const int64_t left_ns = end_ns - clock.NowNs();
    if (left_ns <= 0) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "the other end of the channel did not read for %d ms", timeout_ns / 1'000'000));
    }
    // Not Wait: unread input would end it at once.
    pollfd entry{.fd = fd(), .events = POLLOUT, .revents = 0};
    poll(&entry, 1, static_cast<int>(std::min<int64_t>(left_ns / 1'000'000 + 1, 1000)));
  }
}

}  // namespace pagoda::parallel
