#include "kernels/cuda/sample/sampler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_error.h"

namespace pagoda::kernels::cuda {
namespace {

// Rows of one call: a step's sampled rows, or a chunk of a prompt that is scored.
constexpr int64_t kMaxRows = 65536;

}  // namespace

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::Create(const DeviceContext& context) {
  auto sampler = std::unique_ptr<Sampler>(new Sampler(context));
  constexpr size_t kBytes = kMaxRows * sizeof(SampleRowState) + sizeof(SelectQueue);
  PAGODA_RETURN_IF_ERROR(CudaStatus(cudaMalloc(reinterpret_cast<void**>(&sampler->states_), kBytes),
                                    "cudaMalloc",
                                    "the state of sample"));
  PAGODA_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(sampler->states_, 0, kBytes, context.stream),
                                    "cudaMemsetAsync",
                                    "the state of sample"));
  sampler->queue_ = reinterpret_cast<SelectQueue*>(sampler->states_ + kMaxRows);
  return sampler;
}

Sampler::~Sampler() {
  if (states_ != nullptr) cudaFree(states_);
}

absl::Status Sampler::Run(const SampleParams& params) {
  if (params.rows == 0) return absl::OkStatus();
  if (params.rows > kMaxRows) {
    return UnsupportedError("sample",
                            absl::StrCat(params.rows, " rows in one call; at most ", kMaxRows));
  }
  bool any_stream = context_.recording;
  bool any_select = context_.recording;
  for (int64_t i = 0; i < params.rows; ++i) {
    (IsStreamRow(params.host_row_params[i]) ? any_stream : any_select) = true;
  }
  if (any_stream) PAGODA_RETURN_IF_ERROR(LaunchSampleStream(context_, params, states_));
  if (!any_select) return absl::OkStatus();
  if (params.vocab_size != counted_vocab_size_) {
    PAGODA_ASSIGN_OR_RETURN(num_clusters_, CountSelectClusters(context_, params.vocab_size));
    counted_vocab_size_ = params.vocab_size;
  }
  return LaunchSampleSelect(context_, params, num_clusters_, queue_);
}

}  // namespace pagoda::kernels::cuda
