#include "engine/model/step_limits.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Keeps every product of two limits within 63 bits and every sum within 31.
constexpr uint32_t kMaxCount = 1u << 28;

absl::Status Require(const char* field, uint64_t value, uint64_t max = kMaxCount) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; expected 1 to ", max));
}

}  // namespace

absl::StatusOr<StepLimits> MakeStepLimits(const internal::v1::ServerConfig& config,
                                          const ModelConfig& model,
                                          uint32_t num_kv_blocks) {
  const internal::v1::EngineConfig& engine = config.engine();
  const uint32_t max_model_len = config.model().max_model_len() != 0
                                     ? config.model().max_model_len()
                                     : static_cast<uint32_t>(model.max_position_embeddings);
  PAGODA_RETURN_IF_ERROR(Require("engine.max_num_seqs", engine.max_num_seqs()));
  PAGODA_RETURN_IF_ERROR(Require("engine.max_num_batched_tokens", engine.max_num_batched_tokens()));
  PAGODA_RETURN_IF_ERROR(Require("engine.block_size", engine.block_size()));
  PAGODA_RETURN_IF_ERROR(Require("model.max_model_len", max_model_len));
  PAGODA_RETURN_IF_ERROR(Require("num_kv_blocks", num_kv_blocks));
  // Places in the KV pool are 32-bit numbers.
  PAGODA_RETURN_IF_ERROR(Require("num_kv_blocks * engine.block_size",
                                 uint64_t{num_kv_blocks} * engine.block_size(),
                                 INT32_MAX));
  const int32_t known_ids = static_cast<int32_t>(
      std::min<uint32_t>(config.model().num_known_ids(), static_cast<uint32_t>(model.vocab_size)));
  return StepLimits{.num_slots = static_cast<int32_t>(engine.max_num_seqs()),
                    .max_step_tokens = static_cast<int32_t>(engine.max_num_batched_tokens()),
                    .max_model_len = static_cast<int32_t>(max_model_len),
                    .vocab_size = known_ids != 0 ? known_ids : model.vocab_size,
                    .block_size = static_cast<int32_t>(engine.block_size()),
                    .num_blocks = static_cast<int32_t>(num_kv_blocks)};
}

}  // namespace pagoda::engine
