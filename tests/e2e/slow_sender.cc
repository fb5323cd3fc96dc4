#include "tests/e2e/slow_sender.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/strip.h"

namespace pagoda::e2e {
namespace {

constexpr uint32_t kStream = 1;
constexpr size_t kFrameHeadBytes = 9;
// What a server must take.
constexpr size_t kMostFrameBytes = 16384;
// RFC 9113, section 6.
enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8
};
constexpr uint8_t kAck = 0x1, kEndStream = 0x1, kEndHeaders = 0x4;
constexpr uint16_t kInitialWindowSize = 4;
// Of a message of gRPC: whether it is compressed, and its size.
constexpr size_t kPrefixBytes = 5;

void AppendBigEndian(uint32_t value, int num_bytes, std::string* out) {
  for (int i = num_bytes - 1; i >= 0; --i) out->push_back(static_cast<char>(value >> (8 * i)));
}

uint32_t BigEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  std::string frame;
  AppendBigEndian(static_cast<uint32_t>(payload.size()), 3, &frame);
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  AppendBigEndian(stream, 4, &frame);
  frame.append(payload.data(), payload.size());
  return frame;
}

// A literal that no table keeps (RFC 7541, section 6.2.2). REQUIRES: both are short.
void AppendHeader(absl::string_view name, absl::string_view value, std::string* block) {
  block->push_back('\0');
  for (const absl::string_view text : {name, value}) {
    block->push_back(static_cast<char>(text.size()));
    block->append(text.data(), text.size());
  }
}

}  // namespace

SlowSender::SlowSender(const std::string& address, absl::string_view method, uint32_t message_bytes)
    : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      num_unsent_(message_bytes + kPrefixBytes),
      message_bytes_(message_bytes) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const absl::string_view path = absl::StripPrefix(address, "unix:");
  std::memcpy(name.sun_path, path.data(), std::min(path.size(), sizeof(name.sun_path) - 1));
  ended_ = connect(fd_, reinterpret_cast<sockaddr*>(&name), sizeof(name)) != 0;
  std::string headers;
  AppendHeader(":method", "POST", &headers);
  AppendHeader(":scheme", "http", &headers);
  AppendHeader(":path", method, &headers);
  AppendHeader(":authority", "localhost", &headers);
  AppendHeader("content-type", "application/grpc", &headers);
  AppendHeader("te", "trailers", &headers);
  Write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  Write(Frame(kSettings, 0, 0, ""));
  Write(Frame(kHeaders, kEndHeaders, kStream, headers));
}

SlowSender::~SlowSender() { close(fd_); }

// Waits where the kernel's buffer is full.
void SlowSender::Write(absl::string_view bytes) {
  while (!bytes.empty() && !ended_) {
    const ssize_t size = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size <= 0) {
      ended_ = true;
    } else {
      bytes.remove_prefix(static_cast<size_t>(size));
    }
  }
}

size_t SlowSender::Send(size_t most_bytes) {
  Receive();
  size_t num_sent = 0;
  while (!ended_) {
    pollfd state = {.fd = fd_, .events = POLLOUT, .revents = 0};
    const int64_t window = std::min(connection_window_, stream_window_);
    const size_t size = std::min({static_cast<size_t>(std::max<int64_t>(window, 0)),
                                  num_unsent_,
                                  most_bytes - num_sent,
                                  kMostFrameBytes});
    const size_t least = has_prefix_ ? 1 : kPrefixBytes;
    if (size < least || poll(&state, 1, 0) <= 0 || (state.revents & POLLOUT) == 0) return num_sent;
    std::string data;
    if (!has_prefix_) {
      data.push_back('\0');
      AppendBigEndian(message_bytes_, 4, &data);
      has_prefix_ = true;
    }
    data.resize(size, '\0');
    Write(Frame(kData, 0, kStream, data));
    num_sent += size;
    num_unsent_ -= size;
    connection_window_ -= static_cast<int64_t>(size);
    stream_window_ -= static_cast<int64_t>(size);
  }
  return num_sent;
}

void SlowSender::Receive() {
  char bytes[16384];
  while (!ended_) {
    const ssize_t size = recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN) return;
    ended_ = size <= 0;
    if (!ended_) received_.append(bytes, static_cast<size_t>(size));
    while (received_.size() >= kFrameHeadBytes) {
      const absl::string_view all = received_;
      const size_t payload_bytes = BigEndian(all.substr(0, 3));
      if (all.size() < kFrameHeadBytes + payload_bytes) break;
      HandleFrame(static_cast<uint8_t>(all[3]),
                  static_cast<uint8_t>(all[4]),
                  BigEndian(all.substr(5, 4)),
                  all.substr(kFrameHeadBytes, payload_bytes));
      received_.erase(0, kFrameHeadBytes + payload_bytes);
    }
  }
}

void SlowSender::HandleFrame(uint8_t type,
                             uint8_t flags,
                             uint32_t stream,
                             absl::string_view payload) {
  switch (type) {
    case kData:
    case kHeaders:
      ended_ = ended_ || (flags & kEndStream) != 0;
      return;
    case kResetStream:
    case kGoAway:
      ended_ = true;
      return;
    case kSettings:
      if ((flags & kAck) != 0) return;
      for (size_t i = 0; i + 6 <= payload.size(); i += 6) {
        if (BigEndian(payload.substr(i, 2)) != kInitialWindowSize) continue;
        const int64_t window = BigEndian(payload.substr(i + 2, 4));
        stream_window_ += window - initial_window_;
        initial_window_ = window;
      }
      return Write(Frame(kSettings, kAck, 0, ""));
    case kPing:
      if ((flags & kAck) == 0) Write(Frame(kPing, kAck, 0, payload));
      return;
    case kWindowUpdate:
      (stream == 0 ? connection_window_ : stream_window_) += BigEndian(payload);
      return;
    default:
      return;
  }
}

}  // namespace pagoda::e2e
