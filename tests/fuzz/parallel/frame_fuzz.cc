// A byte of options, then what a peer sends. Bit 0: the bytes are payloads, which get true headers
// here, since no mutation finds a checksum. The other bits say how the stream is cut into reads.
#include <algorithm>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/string_view.h"
#include "pagoda/internal/v1/worker.pb.h"
#include "parallel/frame.h"
#include "parallel/frame_channel.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::parallel {
namespace {

using fuzz::Require;

// Payloads are as long as the byte before them says.
std::string FramesOf(absl::string_view bytes) {
  std::string stream;
  uint64_t sequence = 0;
  while (!bytes.empty()) {
    const size_t length = std::min<size_t>(static_cast<uint8_t>(bytes[0]), bytes.size() - 1);
    const absl::string_view payload = bytes.substr(1, length);
    char header[kFrameHeaderBytes];
    EncodeFrameHeader(++sequence, payload, header);
    stream.append(header, sizeof(header)).append(payload.data(), payload.size());
    bytes.remove_prefix(1 + length);
  }
  return stream;
}

void ParseInPieces(absl::string_view stream, size_t piece_bytes) {
  FrameParser parser;
  size_t num_payload_bytes = 0;
  for (absl::string_view rest = stream; !rest.empty();) {
    const absl::Span<char> space = parser.Space();
    const size_t n = std::min({piece_bytes, rest.size(), space.size()});
    Require(n > 0, "no space");
    std::memcpy(space.data(), rest.data(), n);
    parser.Commit(n);
    rest.remove_prefix(n);
    absl::string_view payload;
    absl::StatusOr<bool> has_frame = parser.Next(&payload);
    for (; has_frame.ok() && *has_frame; has_frame = parser.Next(&payload)) {
      num_payload_bytes += kFrameHeaderBytes + payload.size();
    }
    if (!has_frame.ok()) {
      Require(absl::IsDataLoss(has_frame.status()), "unexpected code");
      break;
    }
  }
  Require(num_payload_bytes <= stream.size(), "more came out than went in");
}

void ReceiveFrom(absl::string_view stream) {
  int sockets[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) == 0,
          "socketpair");
  // What the socket does not take at once is left out.
  (void)!write(sockets[0], stream.data(), stream.size());
  close(sockets[0]);
  FrameChannel channel{UniqueFd(sockets[1])};
  internal::v1::WorkerResponse message;
  absl::StatusOr<bool> received = channel.Receive(&message);
  while (received.ok() && *received) received = channel.Receive(&message);
  Require(absl::IsUnavailable(received.status()) || absl::IsDataLoss(received.status()),
          "the end of the stream is not told");
}

}  // namespace
}  // namespace pagoda::parallel

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda::parallel;
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string stream = (data[0] & 1) != 0 ? FramesOf(bytes) : std::string(bytes);
  ParseInPieces(stream, 1 + (data[0] >> 1));
  ReceiveFrom(stream);
  return 0;
}
