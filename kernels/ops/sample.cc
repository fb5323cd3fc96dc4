#include "kernels/ops/sample.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/require.h"

namespace pagoda::kernels {
namespace {

absl::Status BadRow(int64_t row,
                    absl::string_view field,
                    double value,
                    absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Sample.host_row_params[", row, "].", field, " is ", value, "; expected ", expected));
}

absl::Status ValidateRange(
    int64_t row, absl::string_view field, int32_t begin, int32_t end, const void* array) {
  if (begin < 0 || end < begin) {
    return absl::InvalidArgumentError(absl::StrCat("Sample.host_row_params[",
                                                   row,
                                                   "].",
                                                   field,
                                                   " range is [",
                                                   begin,
                                                   ", ",
                                                   end,
                                                   "); expected 0 <= begin <= end"));
  }
  if (begin < end && array == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Sample.", field, " array is null; row ", row, " names ", end - begin, " entries of it"));
  }
  return absl::OkStatus();
}

// The negated comparisons refuse NaN too.
absl::Status ValidateRow(const SampleParams& params, int64_t i) {
  const SampleRow& row = params.host_row_params[i];
  if (!(row.temperature >= 0.0f) || std::isinf(row.temperature)) {
    return BadRow(i, "temperature", row.temperature, "a finite number of at least 0");
  }
  if (!(row.top_p > 0.0f && row.top_p <= 1.0f))
    return BadRow(i, "top_p", row.top_p, "above 0 and at most 1");
  if (!(row.min_p >= 0.0f && row.min_p <= 1.0f)) return BadRow(i, "min_p", row.min_p, "0 to 1");
  if (!(row.typical_p > 0.0f && row.typical_p <= 1.0f)) {
    return BadRow(i, "typical_p", row.typical_p, "above 0 and at most 1");
  }
  if (!(row.repetition_penalty > 0.0f) || std::isinf(row.repetition_penalty)) {
    return BadRow(i, "repetition_penalty", row.repetition_penalty, "a finite number above 0");
  }
  if (!std::isfinite(row.frequency_penalty)) {
    return BadRow(i, "frequency_penalty", row.frequency_penalty, "a finite number");
  }
  if (!std::isfinite(row.presence_penalty)) {
    return BadRow(i, "presence_penalty", row.presence_penalty, "a finite number");
  }
  if (row.top_k < 0) return BadRow(i, "top_k", row.top_k, "0 (off) or more");
  if (row.slot < -1 || row.slot >= params.num_slots) {
    return BadRow(i, "slot", row.slot, absl::StrCat("-1 to ", params.num_slots - 1));
  }
  if (row.target_token < -1 || row.target_token >= params.vocab_size) {
    return BadRow(
        i, "target_token", row.target_token, absl::StrCat("-1 to ", params.vocab_size - 1));
  }
  if (row.num_logprobs < -1 || row.num_logprobs > params.max_top) {
    return BadRow(
        i, "num_logprobs", row.num_logprobs, absl::StrCat("-1 to max_top, ", params.max_top));
  }
  if (row.num_logprobs >= 0) {
    PAGODA_RETURN_IF_ERROR(RequirePointer("Sample.logprobs", params.logprobs));
    PAGODA_RETURN_IF_ERROR(RequirePointer("Sample.ranks", params.ranks));
  }
  PAGODA_RETURN_IF_ERROR(
      ValidateRange(i, "allowed", row.allowed_begin, row.allowed_end, params.allowed_ids));
  PAGODA_RETURN_IF_ERROR(
      ValidateRange(i, "masked", row.masked_begin, row.masked_end, params.masked_ids));
  PAGODA_RETURN_IF_ERROR(ValidateRange(i, "bias", row.bias_begin, row.bias_end, params.bias_ids));
  PAGODA_RETURN_IF_ERROR(
      ValidateRange(i, "bias", row.bias_begin, row.bias_end, params.bias_values));
  return ValidateRange(i, "penalty", row.penalty_begin, row.penalty_end, params.penalties);
}

}  // namespace

absl::Status Validate(const SampleParams& params) {
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Sample.rows", params.rows, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Sample.vocab_size", params.vocab_size, 1));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Sample.num_slots", params.num_slots, 0));
  PAGODA_RETURN_IF_ERROR(RequireAtLeast("Sample.max_top", params.max_top, 0));
  if (params.rows == 0) return absl::OkStatus();
  PAGODA_RETURN_IF_ERROR(
      RequireAtLeast("Sample.logits_stride", params.logits_stride, params.vocab_size));
  PAGODA_RETURN_IF_ERROR(RequirePointer("Sample.logits", params.logits));
  PAGODA_RETURN_IF_ERROR(RequirePointer("Sample.row_params", params.row_params));
  PAGODA_RETURN_IF_ERROR(RequirePointer("Sample.host_row_params", params.host_row_params));
  PAGODA_RETURN_IF_ERROR(RequirePointer("Sample.tokens", params.tokens));
  if (params.num_slots > 0)
    PAGODA_RETURN_IF_ERROR(RequirePointer("Sample.last_tokens", params.last_tokens));
  if (params.max_top > 0) {
    PAGODA_RETURN_IF_ERROR(RequirePointer("Sample.top_ids", params.top_ids));
    PAGODA_RETURN_IF_ERROR(RequirePointer("Sample.top_logprobs", params.top_logprobs));
  }
  for (int64_t i = 0; i < params.rows; ++i) PAGODA_RETURN_IF_ERROR(ValidateRow(params, i));
  return absl::OkStatus();
}

}  // namespace pagoda::kernels
