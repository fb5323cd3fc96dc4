#include "daemon/server/gzip.h"

#include <array>
#include <vector>
#include <zlib.h>

#include "absl/cleanup/cleanup.h"
#include "daemon/server/rpc_error.h"

namespace pagoda::daemon {
namespace {

constexpr std::array<uint8_t, 2> kMagic = {0x1f, 0x8b};
// zlib's way of saying that the stream has a gzip header.
constexpr int kGzipWindowBits = 15 + 16;
constexpr size_t kPieceBytes = 64 * 1024;

// Inflates what `stream` has been given into `text`.
absl::Status InflateSlice(size_t max_bytes, z_stream* stream, bool* ended, std::string* text) {
  std::array<char, kPieceBytes> piece;
  while (stream->avail_in > 0 && !*ended) {
    stream->next_out = reinterpret_cast<Bytef*>(piece.data());
    stream->avail_out = static_cast<uInt>(piece.size());
    const int result = inflate(stream, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END) return MalformedGzipError();
    *ended = result == Z_STREAM_END;
    text->append(piece.data(), piece.size() - stream->avail_out);
    if (text->size() > max_bytes) return MessageTooLargeError(max_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

bool IsGzip(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Valid() || bytes.Length() < kMagic.size() || !bytes.Dump(&slices).ok()) return false;
  size_t num_seen = 0;
  for (const grpc::Slice& slice : slices) {
    for (size_t i = 0; i < slice.size(); ++i) {
      if (slice.begin()[i] != kMagic[num_seen]) return false;
      if (++num_seen == kMagic.size()) return true;
    }
  }
  return false;
}

absl::StatusOr<std::string> InflateGzip(const grpc::ByteBuffer& bytes, size_t max_bytes) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Dump(&slices).ok()) return MalformedGzipError();
  z_stream stream{};
  if (inflateInit2(&stream, kGzipWindowBits) != Z_OK) return InternalError();
  const absl::Cleanup end_stream = [&stream] { inflateEnd(&stream); };
  std::string text;
  bool ended = false;
  for (const grpc::Slice& slice : slices) {
    stream.next_in = const_cast<Bytef*>(slice.begin());
    stream.avail_in = static_cast<uInt>(slice.size());
    if (absl::Status status = InflateSlice(max_bytes, &stream, &ended, &text); !status.ok())
      return status;
  }
  if (!ended) return MalformedGzipError();
  return text;
}

}  // namespace pagoda::daemon
