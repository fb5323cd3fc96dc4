// The body of a POST, as a completion and as a chat; what can be read goes on to the checks.
#include <string>

#include "daemon/openai/error_body.h"
#include "daemon/openai/generation_request.h"
#include "daemon/server/convert_request.h"
#include "nlohmann/json.hpp"
#include "tests/daemon/server/fake_model.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::daemon {
namespace {

using fuzz::Require;

void CheckError(const absl::Status& status) {
  const openai::HttpError error = openai::ToHttpError(status);
  Require(error.status >= 400 && error.status < 500, status.ToString());
  Require(error.message.size() < 8192, "endless message");
  const auto json = nlohmann::json::parse(error.ToJson(), nullptr, /*allow_exceptions=*/false);
  Require(json.is_object() && json["error"]["message"].is_string(), "error is no JSON");
}

void Check(const absl::StatusOr<openai::GenerationRequest>& request, const ServedModel& model) {
  if (!request.ok()) {
    Require(absl::IsInvalidArgument(request.status()), request.status().ToString());
    return CheckError(request.status());
  }
  Require(!request->calls.empty() && request->calls.size() <= openai::kMaxPrompts, "calls");
  CallOrigin origin = {.key = engine::RequestKey(7), .stream = request->stream, .arrival_ns = 5};
  origin.made_request_id = "made";
  origin.drawn_seed = 42;
  const auto converted = ConvertRequest(request->calls.front(), model, origin);
  if (!converted.ok() && !absl::IsUnimplemented(converted.status()) &&
      !absl::IsFailedPrecondition(converted.status()))
    CheckError(converted.status());
}

}  // namespace
}  // namespace pagoda::daemon

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda::daemon;
  static const ServedModel* const model = new ServedModel(MakeFakeModel());
  const absl::string_view body(reinterpret_cast<const char*>(data), size);
  Check(openai::ParseCompletion(body), *model);
  Check(openai::ParseChat(body), *model);
  return 0;
}
