#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "daemon/client/commands.h"
#include "grpcpp/support/status.h"

namespace pagoda::daemon {

// How a failed call is told and which exit code it gives.
ClientExit ExitOf(const grpc::Status& status);

// "pagoda: INVALID_ARGUMENT: ..." with one indented line for each violated field, the reason and
// the advice to retry that google.rpc details carry. Control characters are escaped.
std::string DescribeFailure(const grpc::Status& status, absl::string_view address);

// The name of the code, and after a slash the reason of ErrorInfo where there is one: for counting.
std::string FailureKind(const grpc::Status& status);

// `text` with control characters other than newline and tab as U+FFFD, for terminals.
std::string PrintableText(absl::string_view text);

}  // namespace pagoda::daemon
