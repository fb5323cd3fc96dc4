#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

namespace pagoda::daemon {

// Parses the received bytes of one request, which may be compressed by gzip. INVALID_ARGUMENT
// naming the field when a string is not UTF-8, or saying that the bytes are no such message; gRPC's
// own parsing would answer UNIMPLEMENTED or INTERNAL to both. RESOURCE_EXHAUSTED when they inflate
// to more than `max_bytes`. Text threads.
absl::Status ParseRequest(const grpc::ByteBuffer& bytes,
                          size_t max_bytes,
                          google::protobuf::Message* message);

// The bytes of a reply.
grpc::ByteBuffer SerializeReply(const google::protobuf::Message& message);

// Path of the first string field that is not valid UTF-8, such as "prompt.text" or
// "stopping.stop[2]"; empty when every string is valid or the bytes are no message of that type.
std::string FindInvalidUtf8(absl::string_view bytes, const google::protobuf::Descriptor& type);

}  // namespace pagoda::daemon
