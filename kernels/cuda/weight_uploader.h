#pragma once

#include <barrier>
#include <cstddef>
#include <cuda_runtime_api.h>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/cuda/device_context.h"

namespace pagoda::kernels::cuda {

// Copies memory with several threads: one alone does not reach the speed of PCIe.
// Thread-compatible.
class CopyPool {
 public:
  explicit CopyPool(int num_threads);
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  void Copy(void* to, const void* from, size_t bytes);

 private:
  void Work(int index);
  void CopyPart(int index) const;

  const int num_threads_;  // the caller's included
  // Written by the caller before start_, read by the workers between start_ and done_.
  char* to_ = nullptr;
  const char* from_ = nullptr;
  size_t bytes_ = 0;
  bool stopping_ = false;
  std::barrier<> start_;
  std::barrier<> done_;
  std::vector<std::thread> threads_;
};

// Brings weights from host memory to the device through a ring of pinned slots: while one slot is
// on its way, the next is filled. Thread-compatible.
class WeightUploader {
 public:
  // `context` must outlive it.
  explicit WeightUploader(const DeviceContext& context) : context_(context) {}
  ~WeightUploader();
  WeightUploader(const WeightUploader&) = delete;
  WeightUploader& operator=(const WeightUploader&) = delete;

  struct Upload {
    const void* source = nullptr;
    DType source_dtype = DType::kBFloat16;
    bool source_is_pinned =
        false;  // then it is read where it is and must stay until the copies have run
    void* to = nullptr;
    DType to_dtype = DType::kBFloat16;
    int64_t count = 0;  // elements
  };
  // Otherwise the source may be changed as soon as this returns.
  absl::Status Run(const Upload& upload);

 private:
  struct Slot {
    void* host = nullptr;
    cudaEvent_t free = nullptr;  // passed when the slot's last copy has run
  };

  absl::Status AllocateSlots();
  absl::Status AllocateStaging();
  // One piece that fits a slot; `bytes` of the source.
  absl::Status RunPiece(const Upload& upload, const char* source, char* to, size_t bytes);

  // ---- Constant.
  const DeviceContext& context_;
  // ---- State, made at the first use.
  std::unique_ptr<CopyPool> pool_;
  std::vector<Slot> slots_;
  size_t next_slot_ = 0;
  void* staging_ = nullptr;  // on the device: a piece in its source type
};

}  // namespace pagoda::kernels::cuda
