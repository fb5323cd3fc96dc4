#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/cache_size.h"
#include "engine/model/model_config.h"
#include "kernels/base/dtype.h"
#include "pagoda/internal/v1/config.pb.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::daemon {

// What the device's memory is used for, decided before any of it is taken. A pure function of its
// inputs. On cuda the pool is an upper bound: the worker measures what steps take, and the pool
// gets what is left.
struct MemoryPlan {
  // Of all ranks together, as every size here.
  uint64_t weight_bytes = 0;
  uint64_t activation_bytes = 0;
  // For ranks to meet on their devices.
  uint64_t collective_bytes = 0;
  // Kept free for the process itself; 0 where that is measured.
  uint64_t reserve_bytes = 0;
  engine::KvPoolPlan kv;
  // What --kv-cache-memory says, where that does not fit; else 0.
  uint64_t asked_pool_bytes = 0;
  int32_t block_size = 0;
  int32_t max_model_len = 0;
  // Each takes the same share.
  int32_t num_ranks = 1;
  // Of all devices.
  uint64_t total_memory_bytes = 0;
  uint64_t free_memory_bytes = 0;

  // ", collectives 80.1 MiB, reserve 64.0 MiB", without what is nothing.
  std::string OtherText() const;
  // Lines for people, without a trailing newline each.
  std::vector<std::string> ToLines() const;
};

// The dtype of weights and KV cache: config.model.dtype, where "auto" is the checkpoint's, or
// float32 on a cpu whose kernels lack the checkpoint's float16.
absl::StatusOr<DType> ResolveDType(const internal::v1::ServerConfig& config,
                                   const engine::ModelConfig& model);

// Workers that share the model.
int32_t NumTensorRanks(const internal::v1::ServerConfig& config);

struct MemoryPlanInputs {
  const internal::v1::ServerConfig* config = nullptr;  // resolved: block size, limits
  const engine::ModelConfig* model = nullptr;
  DType dtype = DType::kFloat32;
  int32_t max_model_len = 0;
  const internal::v1::WorkerHello* hello = nullptr;
};

// RESOURCE_EXHAUSTED, naming sizes and flags, when something does not fit.
absl::StatusOr<MemoryPlan> PlanMemory(const MemoryPlanInputs& inputs);

// What came of the plan where the worker measured: a line for people.
std::string MeasuredMemoryLine(const MemoryPlan& plan, const internal::v1::ModelReady& ready);

// "13.3 MiB".
std::string FormatBytes(uint64_t bytes);

}  // namespace pagoda::daemon
