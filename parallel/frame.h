#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace pagoda::parallel {

// A frame is a header and a payload. The header, in the byte order of the machine (both ends are
// one executable on one machine):
//
//   offset 0   uint32  magic "PGDF"
//          4   uint32  version
//          8   uint64  sequence number: 1, 2, 3, ... in each direction
//         16   uint64  payload bytes, at most kMaxFramePayloadBytes
//         24   uint64  XXH3-64 of the payload, seeded with XXH3-64 of the 24 bytes before
inline constexpr uint32_t kFrameMagic = 0x46444750;
inline constexpr uint32_t kFrameVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 32;
// Far above what a step can need (the prompts of 256 sequences of 100k tokens take 77 MB) and far
// below protobuf's own limit of 2 GiB.
inline constexpr size_t kMaxFramePayloadBytes = size_t{256} << 20;

// Writes the header of `payload` to `header`, which has room for kFrameHeaderBytes.
// REQUIRES: payload.size() <= kMaxFramePayloadBytes.
void EncodeFrameHeader(uint64_t sequence, absl::string_view payload, char* header);

// A byte queue whose memory is reused: bytes are added at its end and taken from its front. Unlike
// std::string it never clears memory that is about to be overwritten. Thread-compatible.
class FrameBuffer {
 public:
  FrameBuffer() = default;
  FrameBuffer(const FrameBuffer&) = delete;
  FrameBuffer& operator=(const FrameBuffer&) = delete;

  absl::string_view data() const { return {bytes_.get() + begin_, end_ - begin_}; }
  size_t size() const { return end_ - begin_; }
  // Free room of at least `num_bytes` behind the end.
  absl::Span<char> Reserve(size_t num_bytes);
  // Adds the first `num_bytes` of what Reserve gave.
  void Commit(size_t num_bytes);
  // Takes bytes from the front. They stay readable until the next Reserve or Trim.
  void Consume(size_t num_bytes);
  // Gives memory back if the queue is empty and much larger than usual.
  void Trim();

 private:
  std::unique_ptr<char[]> bytes_;
  size_t capacity_ = 0;
  // 0 <= begin_ <= end_ <= capacity_; the queue is [begin_, end_).
  size_t begin_ = 0;
  size_t end_ = 0;
};

// Cuts a stream of bytes into frames. Trusts nothing: a header that is wrong in any field ends the
// stream with DATA_LOSS, and memory grows with the bytes that came, not with the length a header
// claims. Thread-compatible.
class FrameParser {
 public:
  // Where the next bytes of the stream go; never empty.
  absl::Span<char> Space();
  // `num_bytes` of Space were filled.
  void Commit(size_t num_bytes) { buffer_.Commit(num_bytes); }
  // Takes the next whole frame: true if there is one. The payload stays valid until the next call
  // of any method. After an error every call returns it.
  absl::StatusOr<bool> Next(absl::string_view* payload);
  // Bytes of a frame that is not whole yet.
  size_t num_pending_bytes() const { return buffer_.size(); }

 private:
  absl::StatusOr<bool> ParseFrame(absl::string_view* payload);

  FrameBuffer buffer_;
  absl::Status error_;
  uint64_t next_sequence_ = 1;
};

}  // namespace pagoda::parallel
