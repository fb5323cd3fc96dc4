#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>

#include "absl/strings/string_view.h"

namespace pagoda::e2e {

// A gRPC call on a connection of its own, sent by hand: a message of zeros that comes as slowly as
// a test wants, or never to its end. Thread-compatible.
class SlowSender {
 public:
  // `address`: "unix:PATH". `method`: "/package.Service/Method".
  SlowSender(const std::string& address, absl::string_view method, uint32_t message_bytes);
  ~SlowSender();
  SlowSender(const SlowSender&) = delete;
  SlowSender& operator=(const SlowSender&) = delete;

  // Sends as much of the message as the server's windows and the kernel take now, `most_bytes` at
  // most, and hears what the server says. How much that was.
  size_t Send(size_t most_bytes);
  // Of the message with its prefix.
  size_t num_unsent() const { return num_unsent_; }
  // The server has ended the call or the connection.
  bool ended() const { return ended_; }

 private:
  void Write(absl::string_view bytes);
  void Receive();
  void HandleFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload);

  int fd_ = -1;
  size_t num_unsent_ = 0;
  bool has_prefix_ = false;
  uint32_t message_bytes_ = 0;
  // HTTP/2's default of both.
  int64_t connection_window_ = 65535, stream_window_ = 65535;
  int64_t initial_window_ = 65535;
  bool ended_ = false;
  std::string received_;  // a frame's beginning
};

}  // namespace pagoda::e2e
