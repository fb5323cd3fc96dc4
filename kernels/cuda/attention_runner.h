#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device_context.h"
#include "kernels/ops/attention.h"

namespace pagoda::kernels::cuda {

// Joins PrepareAttention, which sees a batch, with the attention kernels, which need a plan for
// each geometry of layers that the model has: geometries are learnt from the first step's calls.
// Thread-compatible.
class AttentionRunner {
 public:
  // What the prepared batch makes layers launch; a graph recorded for one cannot run another.
  struct Launches {
    bool decode = false;
    bool prefill = false;
  };

  // `context` must outlive it.
  explicit AttentionRunner(const DeviceContext& context) : context_(context) {}
  ~AttentionRunner();
  AttentionRunner(const AttentionRunner&) = delete;
  AttentionRunner& operator=(const AttentionRunner&) = delete;

  // REQUIRES: the batch passed Validate; nothing is being recorded.
  absl::Status Prepare(const AttentionBatch& batch);
  // REQUIRES: params passed Validate, and params.batch is what was prepared last.
  absl::Status Run(const PagedAttentionParams& params);

  // Of the batch prepared last, over all geometries.
  Launches launches() const { return launches_; }

 private:
  // Layers that share a plan.
  struct Geometry {
    DType dtype = DType::kBFloat16;
    int32_t head_dim = 0;
    int32_t num_q_heads = 0;
    int32_t num_kv_heads = 0;
    int32_t window = 0;

    bool operator==(const Geometry&) const = default;
  };
  // Pinned memory that a plan is copied from.
  struct Slot {
    void* host = nullptr;
    cudaEvent_t copied = nullptr;
  };
  struct Entry {
    Geometry geometry;
    AttentionPlanShape shape;
    void* plan = nullptr;       // device
    void* workspace = nullptr;  // device
    std::vector<Slot> slots;
    size_t next_slot = 0;
    Launches launches;

    ~Entry();
  };

  absl::StatusOr<std::unique_ptr<Entry>> MakeEntry(const Geometry& geometry) const;
  absl::Status Plan(Entry& entry);

  // ---- Constant.
  const DeviceContext& context_;
  // ---- State.
  std::vector<std::unique_ptr<Entry>> entries_;
  // Entries that became too small; graphs may still use their memory.
  std::vector<std::unique_ptr<Entry>> outgrown_;
  // The prepared batch's arrays of the host.
  std::vector<int32_t> row_offsets_;
  std::vector<int32_t> context_lens_;
  int32_t num_rows_ = 0;
  Launches launches_;
};

}  // namespace pagoda::kernels::cuda
