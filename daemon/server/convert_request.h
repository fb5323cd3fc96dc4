#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "daemon/server/served_model.h"
#include "engine/guided/constraint.h"
#include "engine/request.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon {

// What the daemon, not the client, gives a request.
struct CallOrigin {
  engine::Tenant tenant;
  engine::RequestKey key;
  bool stream = false;
  int64_t arrival_ns = 0;
  absl::optional<int64_t> deadline_ns;
  // Used where the client gave none.
  std::string made_request_id;
  uint64_t drawn_seed = 0;
  // A constraint that has to be compiled is left to who admits the request.
  bool leaves_compiling = false;
};

// A constraint that was not compiled yet, and the field that holds it.
struct UncompiledConstraint {
  engine::guided::ConstraintSource source;
  std::string field;
};

struct ConvertedRequest {
  engine::Request request;
  // The resolved parameters; the counts come with the engine's first delta.
  v1::Started started;
  // Sent before the output of each sequence; empty unless asked for.
  std::string echo_text;
  // Only where the origin leaves compiling: request.sampling.constraint is to be this.
  absl::optional<UncompiledConstraint> uncompiled;
};

// The only place where a public request becomes an engine::Request (with convert_response for the
// way back). Resolves absent fields (generation_config.json, else neutral), checks every range and
// limit, encodes text. Fails with an error of rpc_error.h. Text threads: encoding a long prompt
// takes milliseconds.
template <typename GenerateOrStreamRequest>
absl::StatusOr<ConvertedRequest> ConvertRequest(const GenerateOrStreamRequest& message,
                                                const ServedModel& model,
                                                const CallOrigin& origin);

extern template absl::StatusOr<ConvertedRequest> ConvertRequest(const v1::GenerateRequest&,
                                                                const ServedModel&,
                                                                const CallOrigin&);
extern template absl::StatusOr<ConvertedRequest> ConvertRequest(const v1::StreamGenerateRequest&,
                                                                const ServedModel&,
                                                                const CallOrigin&);

// INVALID_ARGUMENT that names one field.
absl::Status FieldError(absl::string_view field, absl::string_view description);

// Ids of a text as a prompt, or of a Tokenize call, takes it. `field` names it in errors.
absl::StatusOr<std::vector<engine::TokenId>> EncodeText(absl::string_view field,
                                                        absl::string_view text,
                                                        const engine::EncodeOptions& options,
                                                        const engine::Tokenizer& tokenizer);

// The sampling that a request without any field gets.
v1::SamplingParams DefaultSampling(const ServedModel& model);

// Longest request_id and cache_salt, as inference.proto says.
inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxCacheSaltBytes = 256;

}  // namespace pagoda::daemon
