#pragma once

#include "absl/status/statusor.h"
#include "daemon/server/metrics_collector.h"
#include "daemon/server/served_model.h"
#include "pagoda/internal/v1/config.pb.h"

namespace pagoda::daemon {

// Reads and checks everything of the model directory but the weights' data: config.json,
// generation_config.json, the tokenizer, the headers of the weight files. Resolves config's dtype
// and max_model_len. Errors name the file, and what to do.
absl::StatusOr<ServedModel> LoadServedModel(internal::v1::ServerConfig* config);

MetricsInfo MetricsInfoOf(const ServedModel& model, const internal::v1::ServerConfig& config);

}  // namespace pagoda::daemon
