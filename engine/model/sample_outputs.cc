#include "engine/model/sample_outputs.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Top entries a row that fit without making chunks smaller; the usual limit of requests is 20.
constexpr int32_t kUsualTop = 32;

}  // namespace

SampleOutputs::Arrays SampleOutputs::Lay(void* base) const {
  // Every element has four bytes.
  auto* const words = static_cast<int32_t*>(base);
  const size_t rows = static_cast<size_t>(max_logit_rows_);
  return {.tokens = words,
          .logprobs = reinterpret_cast<float*>(words + rows),
          .ranks = words + 2 * rows,
          .top_ids = words + 3 * rows,
          .top_logprobs = reinterpret_cast<float*>(words + 3 * rows + max_top_entries_)};
}

absl::StatusOr<SampleOutputs> SampleOutputs::Allocate(kernels::Backend& backend,
                                                      int32_t max_logit_rows,
                                                      int32_t vocab_size,
                                                      int num_sets) {
  SampleOutputs outputs;
  outputs.max_logit_rows_ = max_logit_rows;
  outputs.max_top_entries_ =
      std::max<int64_t>(int64_t{max_logit_rows} * std::min(kUsualTop, vocab_size), vocab_size);
  const size_t size_bytes = sizeof(int32_t) * static_cast<size_t>(3 * int64_t{max_logit_rows} +
                                                                  2 * outputs.max_top_entries_);
  PAGODA_ASSIGN_OR_RETURN(outputs.device_, backend.Allocate(size_bytes, "sampling results"));
  for (int i = 0; i < num_sets; ++i) {
    PAGODA_ASSIGN_OR_RETURN(kernels::Buffer host,
                            backend.AllocateHost(size_bytes, "sampling results"));
    outputs.host_.push_back(std::move(host));
  }
  return outputs;
}

int32_t SampleOutputs::MaxRows(int32_t max_top) const {
  return static_cast<int32_t>(
      std::clamp<int64_t>(max_top_entries_ / std::max(max_top, 1), 1, max_logit_rows_));
}

void SampleOutputs::SetParams(int32_t max_top, kernels::SampleParams* params) const {
  const Arrays arrays = Lay(device_.data());
  params->tokens = arrays.tokens;
  params->logprobs = arrays.logprobs;
  params->ranks = arrays.ranks;
  params->top_ids = arrays.top_ids;
  params->top_logprobs = arrays.top_logprobs;
  params->max_top = max_top;
}

absl::StatusOr<SampledChunk> SampleOutputs::CopyToHost(kernels::Backend& backend,
                                                       int64_t rows,
                                                       bool with_logprobs,
                                                       int32_t max_top,
                                                       int set_idx) const {
  const Arrays device = Lay(device_.data());
  const Arrays host = Lay(host_[static_cast<size_t>(set_idx)].data());
  const size_t row_bytes = static_cast<size_t>(rows) * sizeof(int32_t);
  PAGODA_RETURN_IF_ERROR(backend.CopyToHost(host.tokens, device.tokens, row_bytes));
  if (with_logprobs) {
    PAGODA_RETURN_IF_ERROR(backend.CopyToHost(host.logprobs, device.logprobs, row_bytes));
    PAGODA_RETURN_IF_ERROR(backend.CopyToHost(host.ranks, device.ranks, row_bytes));
  }
  if (max_top > 0) {
    const size_t top_bytes = row_bytes * static_cast<size_t>(max_top);
    PAGODA_RETURN_IF_ERROR(backend.CopyToHost(host.top_ids, device.top_ids, top_bytes));
    PAGODA_RETURN_IF_ERROR(backend.CopyToHost(host.top_logprobs, device.top_logprobs, top_bytes));
  }
  return SampledChunk{.tokens = host.tokens,
                      .logprobs = host.logprobs,
                      .ranks = host.ranks,
                      .top_ids = host.top_ids,
                      .top_logprobs = host.top_logprobs,
                      .max_top = max_top};
}

}  // namespace pagoda::engine
