#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"

namespace pagoda::daemon {

// Whether the bytes begin as gzip does. No protobuf message can: 1F would be a field of a wire type
// that does not exist.
bool IsGzip(const grpc::ByteBuffer& bytes);

// gRPC's own decompression inflates a whole message before it looks at the size, so that a megabyte
// becomes a gigabyte; here it ends as soon as there is too much. RESOURCE_EXHAUSTED beyond
// `max_bytes`, INVALID_ARGUMENT when the stream is broken.
absl::StatusOr<std::string> InflateGzip(const grpc::ByteBuffer& bytes, size_t max_bytes);

}  // namespace pagoda::daemon
