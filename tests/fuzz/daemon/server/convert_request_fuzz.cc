// A request: as text when it begins with '#', else as a client's bytes.
#include <string>

#include "daemon/server/convert_request.h"
#include "daemon/server/message_bytes.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/support/byte_buffer.h"
#include "tests/daemon/server/fake_model.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::daemon {
namespace {

using fuzz::Require;

// Mutated text is rarely right; nobody wants to read why.
class Silent final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
};

bool Parse(absl::string_view input, v1::GenerateRequest* request) {
  if (!input.empty() && input[0] == '#') {
    Silent silent;
    google::protobuf::TextFormat::Parser parser;
    parser.RecordErrorsTo(&silent);
    return parser.ParseFromString(std::string(input), request);
  }
  const grpc::Slice slice(input.data(), input.size());
  return ParseRequest(grpc::ByteBuffer(&slice, 1), size_t{1} << 20, request).ok();
}

void CheckRequest(const engine::Request& request, const ServedModel& model) {
  Require(!request.prompt.empty(), "empty prompt");
  for (const engine::TokenId id : request.prompt) {
    Require(id >= 0 && id < model.num_known_ids, "token id out of range");
  }
  Require(request.n >= 1 && request.n <= static_cast<int>(model.limits.max_n()), "n");
  Require(request.stop.max_tokens.value_or(0) >= 0, "max_tokens");
  Require(request.prompt.size() <= static_cast<size_t>(model.max_context_tokens), "context");
  Require(request.sampling.temperature >= 0, "temperature");
  Require(request.sampling.top_p > 0 && request.sampling.top_p <= 1, "top_p");
  Require(request.sampling.top_k >= 0, "top_k");
  Require(request.sampling.max_draft_tokens >= 0 &&
              request.sampling.max_draft_tokens <= engine::kMaxDraftTokens,
          "max_draft_tokens");
  if (request.sampling.beams.has_value()) {
    const engine::BeamParams& beams = *request.sampling.beams;
    Require(beams.width >= request.n && beams.width == request.best_of, "beams");
    Require(beams.length_penalty >= -10 && beams.length_penalty <= 10, "length_penalty");
    Require(request.sampling.constraint == nullptr, "beams under a constraint");
  }
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    Require(id >= 0 && id < model.config.vocab_size && bias == bias, "logit_bias");
  }
}

void CheckError(const absl::Status& status) {
  Require(absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
              absl::IsUnimplemented(status) || absl::IsResourceExhausted(status),
          status.ToString());
  Require(status.message().size() < 8192, "endless message");
}

}  // namespace
}  // namespace pagoda::daemon

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda::daemon;
  static const ServedModel* const model = new ServedModel(MakeFakeModel());
  pagoda::v1::GenerateRequest request;
  if (!Parse({reinterpret_cast<const char*>(data), size}, &request)) return 0;
  CallOrigin origin = {.key = pagoda::engine::RequestKey(7), .arrival_ns = 5};
  origin.made_request_id = "made";
  origin.drawn_seed = 42;
  const auto converted = ConvertRequest(request, *model, origin);
  if (converted.ok()) {
    CheckRequest(converted->request, *model);
  } else {
    CheckError(converted.status());
  }
  return 0;
}
