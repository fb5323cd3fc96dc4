#pragma once

#include "absl/status/statusor.h"
#include "daemon/client/bench_options.h"
#include "grpcpp/support/status.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon {

// What a load needs to know of the server before it begins: which model it has, and how many tokens
// recorded answers have, which become the lengths to ask for.

// From the daemon's gRPC API.
grpc::Status AskDaemon(BenchOptions* options, v1::GetModelResponse* model);

// From a server of OpenAI's API: the first of its models where the options name none. One that
// cannot count tokens (POST /tokenize) has four bytes taken for one. REQUIRES: options->http.
absl::StatusOr<v1::GetModelResponse> AskHttpServer(BenchOptions* options);

}  // namespace pagoda::daemon
