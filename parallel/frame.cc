#include "parallel/frame.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <xxhash.h>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"

namespace pagoda::parallel {
namespace {

struct FrameHeader {
  uint32_t magic;
  uint32_t version;
  uint64_t sequence;
  uint64_t payload_bytes;
  uint64_t checksum;
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);

// Holds any step of a few hundred sequences, so that it is one read and one write.
constexpr size_t kInitialBufferBytes = size_t{64} << 10;
// A buffer that one large frame made larger than this is given back when it is empty.
constexpr size_t kMaxKeptBufferBytes = size_t{4} << 20;

uint64_t Checksum(const FrameHeader& header, absl::string_view payload) {
  const uint64_t seed = XXH3_64bits(&header, offsetof(FrameHeader, checksum));
  return XXH3_64bits_withSeed(payload.data(), payload.size(), seed);
}

absl::Status CheckHeader(const FrameHeader& header, uint64_t expected_sequence) {
  if (header.magic != kFrameMagic) {
    return absl::DataLossError(
        absl::StrFormat("frame starts with %#x, expected %#x", header.magic, kFrameMagic));
  }
  if (header.version != kFrameVersion) {
    return absl::DataLossError(
        absl::StrFormat("frame version is %u, expected %u", header.version, kFrameVersion));
  }
  if (header.sequence != expected_sequence) {
    return absl::DataLossError(absl::StrFormat(
        "frame sequence number is %u, expected %u", header.sequence, expected_sequence));
  }
  if (header.payload_bytes > kMaxFramePayloadBytes) {
    return absl::DataLossError(
        absl::StrFormat("frame payload is %u bytes long, expected at most %u",
                        header.payload_bytes,
                        kMaxFramePayloadBytes));
  }
  return absl::OkStatus();
}

}  // namespace

void EncodeFrameHeader(uint64_t sequence, absl::string_view payload, char* header) {
  PAGODA_CHECK(payload.size() <= kMaxFramePayloadBytes);
  FrameHeader fields{.magic = kFrameMagic,
                     .version = kFrameVersion,
                     .sequence = sequence,
                     .payload_bytes = payload.size(),
                     .checksum = 0};
  fields.checksum = Checksum(fields, payload);
  std::memcpy(header, &fields, sizeof fields);
}

absl::Span<char> FrameBuffer::Reserve(size_t num_bytes) {
  if (capacity_ - end_ >= num_bytes) return {bytes_.get() + end_, capacity_ - end_};
  const size_t needed = size() + num_bytes;
  if (needed <= capacity_) {
    std::memmove(bytes_.get(), bytes_.get() + begin_, size());
  } else {
    const size_t grown = std::max({needed, 2 * capacity_, kInitialBufferBytes});
    auto bytes = std::make_unique_for_overwrite<char[]>(grown);
    if (size() > 0) std::memcpy(bytes.get(), bytes_.get() + begin_, size());
    bytes_ = std::move(bytes);
    capacity_ = grown;
  }
  end_ = size();
  begin_ = 0;
  return {bytes_.get() + end_, capacity_ - end_};
}

void FrameBuffer::Commit(size_t num_bytes) {
  PAGODA_CHECK(num_bytes <= capacity_ - end_);
  end_ += num_bytes;
}

void FrameBuffer::Consume(size_t num_bytes) {
  PAGODA_CHECK(num_bytes <= size());
  begin_ += num_bytes;
  if (begin_ == end_) begin_ = end_ = 0;
}

void FrameBuffer::Trim() {
  if (size() > 0 || capacity_ <= kMaxKeptBufferBytes) return;
  bytes_.reset();
  capacity_ = 0;
}

absl::Span<char> FrameParser::Space() {
  buffer_.Trim();
  return buffer_.Reserve(1);
}

absl::StatusOr<bool> FrameParser::Next(absl::string_view* payload) {
  if (!error_.ok()) return error_;
  absl::StatusOr<bool> whole = ParseFrame(payload);
  error_ = whole.status();
  return whole;
}

absl::StatusOr<bool> FrameParser::ParseFrame(absl::string_view* payload) {
  const absl::string_view bytes = buffer_.data();
  if (bytes.size() < kFrameHeaderBytes) return false;
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (absl::Status status = CheckHeader(header, next_sequence_); !status.ok()) return status;
  if (bytes.size() - kFrameHeaderBytes < header.payload_bytes) return false;
  *payload = bytes.substr(kFrameHeaderBytes, header.payload_bytes);
  if (Checksum(header, *payload) != header.checksum) {
    return absl::DataLossError(absl::StrFormat(
        "checksum of frame %u (%u bytes) does not match", header.sequence, header.payload_bytes));
  }
  ++next_sequence_;
  buffer_.Consume(kFrameHeaderBytes + header.payload_bytes);
  return true;
}

}  // namespace pagoda::parallel
