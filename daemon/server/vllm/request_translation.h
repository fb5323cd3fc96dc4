#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/server/served_model.h"
#include "pagoda/v1/inference.pb.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace pagoda::daemon {

namespace engine_pb = ::vllm::grpc::engine;

// The request of pagoda.v1 that means the same: every field is set, since absent ones would take
// the model's defaults. INVALID_ARGUMENT naming what Pagoda cannot do. Ranges are checked by
// ConvertRequest.
absl::StatusOr<v1::StreamGenerateRequest> TranslateRequest(engine_pb::GenerateRequest request,
                                                           const ServedModel& model);

// An error about a translated request, with the fields named as the client knows them.
absl::Status RestateError(const absl::Status& status);

}  // namespace pagoda::daemon
