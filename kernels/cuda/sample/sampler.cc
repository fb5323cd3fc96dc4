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
  constexpr size_t kStateBytes = kMaxRows * sizeof(SampleRowState);
  constexpr size_t kQueueBytes = 16;
  static_assert(sizeof(SelectQueue) <= kQueueBytes);
  constexpr size_t kMaximaBytes = kMaxTopRows * (kMaxTopVocab / kBlockTokens) * sizeof(uint32_t);
  constexpr size_t kBytes = kStateBytes + kQueueBytes + kMaximaBytes;
  PAGODA_RETURN_IF_ERROR(CudaStatus(cudaMalloc(reinterpret_cast<void**>(&sampler->states_), kBytes),
                                    "cudaMalloc",
                                    "the state of sample"));
  PAGODA_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(sampler->states_, 0, kBytes, context.stream),
                                    "cudaMemsetAsync",
                                    "the state of sample"));
  char* const base = reinterpret_cast<char*>(sampler->states_);
  sampler->queue_ = reinterpret_cast<SelectQueue*>(base + kStateBytes);
  sampler->maxima_ = reinterpret_cast<uint32_t*>(base + kStateBytes + kQueueBytes);
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
  bool any_top = context_.recording;
  bool any_select = context_.recording;
  for (int64_t i = 0; i < params.rows; ++i) {
    switch (RouteOf(params.host_row_params[i], i, params.vocab_size)) {
      case SampleRoute::kStream:
        any_stream = true;
        break;
      case SampleRoute::kTop:
        any_top = true;
        break;
      case SampleRoute::kSelect:
        any_select = true;
        break;
    }
  }
  if (any_stream || any_top) {
    PAGODA_RETURN_IF_ERROR(LaunchSampleStream(context_, params, states_, maxima_));
  }
  if (any_top) PAGODA_RETURN_IF_ERROR(LaunchSampleTop(context_, params, maxima_));
  if (!any_select) return absl::OkStatus();
  if (params.vocab_size != counted_vocab_size_) {
    PAGODA_ASSIGN_OR_RETURN(num_clusters_, CountSelectClusters(context_, params.vocab_size));
    counted_vocab_size_ = params.vocab_size;
  }
  return LaunchSampleSelect(context_, params, num_clusters_, queue_);
}

}  // namespace pagoda::kernels::cuda
