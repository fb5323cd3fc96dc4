#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/openai/json_fields.h"
#include "daemon/openai/output_shape.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon::openai {

enum class Endpoint : uint8_t { kCompletions, kChat };

// What one POST to /v1/completions or /v1/chat/completions asks for.
struct GenerationRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  bool stream = false;
  bool include_usage = false;     // in a chunk at the end of the stream
  bool continuous_usage = false;  // and in every other
  bool return_token_ids = false;
  OutputShape shape;
  // One per prompt, alike but for prompt and request_id. Not empty.
  std::vector<v1::GenerateRequest> calls;
};

// Fails with INVALID_ARGUMENT naming the fields as the client knows them. What pagoda.v1 checks is
// left to ConvertRequest.
absl::StatusOr<GenerationRequest> ParseCompletion(absl::string_view body);
absl::StatusOr<GenerationRequest> ParseChat(absl::string_view body);

// A body that is a JSON object.
absl::StatusOr<nlohmann::ordered_json> ParseBody(absl::string_view body);

// Fields that both endpoints have: sampling, stops, stream.
void ReadCommonFields(const JsonFields& fields,
                      GenerationRequest* request,
                      v1::GenerateRequest* call);

// Prompts that one request may hold.
inline constexpr size_t kMaxPrompts = 256;

}  // namespace pagoda::daemon::openai
