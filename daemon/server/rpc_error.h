#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "grpcpp/support/status.h"

// The catalogue of what clients are told when a call fails. Each constructor makes an absl::Status
// whose payloads are the details of a google.rpc.Status; ToGrpcStatus puts them on the wire. No
// text holds internals or more than a short escaped extract of what the client sent.
namespace pagoda::daemon {

// One field of a request that cannot be served as it is.
struct FieldViolation {
  std::string field;  // path as in inference.proto, such as "sampling.temperature"
  std::string description;
};

// INVALID_ARGUMENT with BadRequest. REQUIRES: violations is not empty.
absl::Status InvalidFieldsError(const std::vector<FieldViolation>& violations,
                                absl::string_view reason = "INVALID_FIELD");
// INVALID_ARGUMENT: the prompt alone is longer than the context.
absl::Status PromptTooLongError(absl::string_view field, absl::string_view description);
// INVALID_ARGUMENT: the bytes are no message of that type.
absl::Status MalformedMessageError(absl::string_view message_type);
// INVALID_ARGUMENT: not what gzip makes.
absl::Status MalformedGzipError();
// RESOURCE_EXHAUSTED, as gRPC says of a message that is too large before it is inflated.
absl::Status MessageTooLargeError(size_t max_bytes);
// UNAUTHENTICATED: no key of ours is shown. PERMISSION_DENIED: the key is of a lower class.
absl::Status UnauthenticatedError();
absl::Status WrongAccessClassError();
// NOT_FOUND with ResourceInfo.
absl::Status ModelNotFoundError(absl::string_view name, absl::string_view served_name);
// ALREADY_EXISTS.
absl::Status RequestIdInUseError(absl::string_view request_id);
// FAILED_PRECONDITION: the model directory has no tokenizer.json.
absl::Status NoTokenizerError(absl::string_view method);
// RESOURCE_EXHAUSTED with RetryInfo: too much waits to be tokenised, or whatever `purpose` says.
absl::Status TextQueueFullError(size_t num_waiting, absl::string_view purpose = "tokenised");
// RESOURCE_EXHAUSTED: the client does not read its stream.
absl::Status SlowReaderError(absl::string_view what);
// UNAVAILABLE with RetryInfo.
absl::Status LoadingError();
absl::Status RecoveringError();
absl::Status DrainingError();
absl::Status WorkerLostError();
// CANCELLED and DEADLINE_EXCEEDED, before the engine has seen the request.
absl::Status CallCancelledError();
absl::Status DeadlinePassedError();
// INTERNAL: a bug of ours; the log says more.
absl::Status InternalError();

// The delay in the status' RetryInfo, or the one that its code asks for; absent: not worth
// retrying.
absl::optional<absl::Duration> RetryDelay(const absl::Status& status);

// The fields that BadRequest names; empty when the status has none.
std::vector<FieldViolation> FieldViolations(const absl::Status& status);

// ErrorInfo.reason of the status; empty when it has none.
std::string ErrorReason(const absl::Status& status);

// With the details serialised, at most kMaxErrorDetailBytes of them. A status without details (from
// the engine) gets the ErrorInfo and RetryInfo that its code asks for.
grpc::Status ToGrpcStatus(const absl::Status& status);

// gRPC 1.51 receives 8 KiB of metadata by default and turns a larger status into
// RESOURCE_EXHAUSTED.
inline constexpr size_t kMaxErrorDetailBytes = 4096;

// The name of a status code on the wire: "OK", "INVALID_ARGUMENT", ...; "UNKNOWN" for any other.
absl::string_view GrpcCodeName(int code);

// The start of what a client sent, escaped to printable ASCII, in quotes.
std::string QuotedExtract(absl::string_view bytes);

}  // namespace pagoda::daemon
