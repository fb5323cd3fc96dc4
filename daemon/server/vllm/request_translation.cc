#include "daemon/server/vllm/request_translation.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "daemon/server/request_fields.h"
#include "daemon/server/rpc_error.h"
#include "google/rpc/error_details.pb.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";
constexpr int32_t kSeedNotGiven = -1;
constexpr int32_t kWholeContext = -1;

// The longest prefix counts, so the order matters.
struct FieldName {
  absl::string_view ours;
  absl::string_view theirs;
};
constexpr FieldName kFieldNames[] = {
    {"prompt.token_ids.ids", "tokenized.input_ids"},
    {"prompt.token_ids", "tokenized.input_ids"},
    {"prompt.text", "text"},
    {"prompt.truncate_prompt_tokens", "sampling_params.truncate_prompt_tokens"},
    {"sampling.", "sampling_params."},
    {"stopping.", "sampling_params."},
    {"output.", "sampling_params."},
};

std::string TheirFieldName(absl::string_view field) {
  for (const FieldName& name : kFieldNames) {
    if (absl::StartsWith(field, name.ours))
      return absl::StrCat(name.theirs, field.substr(name.ours.size()));
  }
  return std::string(field);
}

void RefuseUnsupported(const engine_pb::GenerateRequest& request, FieldChecker* checker) {
  constexpr char kNoMedia[] = "is set, but the model takes text alone";
  constexpr char kNoTransfer[] = "is set, but KV blocks are not transferred between servers here";
  if (request.has_mm_inputs()) checker->Fail("mm_inputs", kNoMedia);
  if (!request.extra_mm_inputs().empty()) checker->Fail("extra_mm_inputs", kNoMedia);
  if (request.has_media_refs()) checker->Fail("media_refs", kNoMedia);
  if (request.has_kv_transfer_params()) checker->Fail("kv_transfer_params", kNoTransfer);
  if (!request.kv_transfer_params_json().empty())
    checker->Fail("kv_transfer_params_json", kNoTransfer);
  if (request.has_data_parallel_rank())
    checker->CheckInt("data_parallel_rank", request.data_parallel_rank(), 0, 0);
  if (request.sampling_params().has_structural_tag()) {
    checker->Fail("sampling_params.structural_tag",
                  "is not supported; json_schema, regex, grammar, json_object and choice are");
  }
}

void TranslateInput(engine_pb::GenerateRequest* request,
                    const ServedModel& model,
                    FieldChecker* checker,
                    v1::Prompt* prompt) {
  switch (request->input_case()) {
    case engine_pb::GenerateRequest::kTokenized:
      prompt->mutable_token_ids()->mutable_ids()->Swap(
          request->mutable_tokenized()->mutable_input_ids());
      break;
    case engine_pb::GenerateRequest::kText:
      prompt->set_text(std::move(*request->mutable_text()));
      prompt->set_parse_special_tokens(true);
      break;
    case engine_pb::GenerateRequest::INPUT_NOT_SET:
      checker->Fail("input", "one of tokenized and text must be set");
      break;
  }
  const engine_pb::SamplingParams& params = request->sampling_params();
  if (!params.has_truncate_prompt_tokens()) return;
  const int32_t keep = params.truncate_prompt_tokens() == kWholeContext
                           ? model.max_context_tokens
                           : params.truncate_prompt_tokens();
  if (checker->CheckInt(
          "sampling_params.truncate_prompt_tokens", keep, 1, model.max_context_tokens)) {
    prompt->set_truncate_prompt_tokens(static_cast<uint32_t>(keep));
  }
}

void TranslateConstraint(engine_pb::SamplingParams* params, v1::SamplingParams* sampling) {
  switch (params->constraint_case()) {
    case engine_pb::SamplingParams::kJsonSchema:
      sampling->set_json_schema(std::move(*params->mutable_json_schema()));
      break;
    case engine_pb::SamplingParams::kRegex:
      sampling->set_regex(std::move(*params->mutable_regex()));
      break;
    case engine_pb::SamplingParams::kGrammar:
      sampling->set_grammar(std::move(*params->mutable_grammar()));
      break;
    case engine_pb::SamplingParams::kJsonObject:
      if (params->json_object()) sampling->set_json_object(true);
      break;
    case engine_pb::SamplingParams::kChoice:
      sampling->mutable_choice()->mutable_choices()->Swap(
          params->mutable_choice()->mutable_choices());
      break;
    case engine_pb::SamplingParams::kStructuralTag:
    case engine_pb::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
}

void TranslateSampling(engine_pb::SamplingParams* params,
                       FieldChecker* checker,
                       v1::SamplingParams* sampling) {
  const auto or_one = [](float value) { return value == 0.0f ? 1.0f : value; };
  sampling->set_temperature(params->has_temperature() ? params->temperature() : 1.0f);
  sampling->set_top_p(or_one(params->top_p()));
  // More than the vocabulary is as good as off.
  sampling->set_top_k(static_cast<int32_t>(
      std::min<uint32_t>(params->top_k(), std::numeric_limits<int32_t>::max())));
  sampling->set_min_p(params->min_p());
  sampling->set_typical_p(1.0f);
  sampling->set_repetition_penalty(or_one(params->repetition_penalty()));
  sampling->set_frequency_penalty(params->frequency_penalty());
  sampling->set_presence_penalty(params->presence_penalty());
  if (params->has_seed() && params->seed() != kSeedNotGiven)
    sampling->set_seed(static_cast<uint64_t>(int64_t{params->seed()}));
  for (const auto& [id, bias] : params->logit_bias()) {
    if (id < 0) {
      checker->Fail(absl::StrCat("sampling_params.logit_bias[", id, "]"),
                    absl::StrCat("token id ", id, " is negative"));
      continue;
    }
    (*sampling->mutable_logit_bias())[static_cast<uint32_t>(id)] = bias;
  }
  TranslateConstraint(params, sampling);
}

void TranslateStopping(engine_pb::SamplingParams* params, v1::StopConditions* stopping) {
  if (params->has_max_tokens()) stopping->set_max_tokens(params->max_tokens());
  stopping->set_min_tokens(params->min_tokens());
  stopping->mutable_stop()->Swap(params->mutable_stop());
  stopping->mutable_stop_token_ids()->Swap(params->mutable_stop_token_ids());
  stopping->set_include_stop(params->include_stop_str_in_output());
  stopping->set_ignore_eos(params->ignore_eos());
}

void TranslateOutput(const engine_pb::SamplingParams& params, v1::OutputOptions* output) {
  output->set_n(params.n() == 0 ? 1 : params.n());
  if (params.has_logprobs()) output->set_logprobs(params.logprobs());
  if (params.has_prompt_logprobs()) output->set_prompt_logprobs(params.prompt_logprobs());
  output->set_skip_special_tokens(params.skip_special_tokens());
  output->set_omit_text(true);
}

}  // namespace

absl::StatusOr<v1::StreamGenerateRequest> TranslateRequest(engine_pb::GenerateRequest request,
                                                           const ServedModel& model) {
  FieldChecker checker;
  RefuseUnsupported(request, &checker);
  v1::StreamGenerateRequest out;
  out.set_request_id(std::move(*request.mutable_request_id()));
  TranslateInput(&request, model, &checker, out.mutable_prompt());
  engine_pb::SamplingParams* params = request.mutable_sampling_params();
  TranslateSampling(params, &checker, out.mutable_sampling());
  TranslateStopping(params, out.mutable_stopping());
  TranslateOutput(*params, out.mutable_output());
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  return out;
}

absl::Status RestateError(const absl::Status& status) {
  const auto payload = status.GetPayload(kBadRequestUrl);
  google::rpc::BadRequest bad_request;
  if (!payload.has_value() || !bad_request.ParseFromString(std::string(*payload)) ||
      bad_request.field_violations().empty()) {
    return status;
  }
  std::vector<FieldViolation> violations;
  for (const auto& violation : bad_request.field_violations()) {
    violations.push_back(
        {TheirFieldName(violation.field()),
         absl::StrReplaceAll(violation.description(),
                             {{"stopping.max_tokens", "sampling_params.max_tokens"},
                              {"use StreamGenerate", "set stream"}})});
  }
  return InvalidFieldsError(violations, ErrorReason(status));
}

}  // namespace pagoda::daemon
