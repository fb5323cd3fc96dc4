#include "kernels/cuda/weight_uploader.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/weights.h"

namespace pagoda::kernels::cuda {
namespace {

// At 50 GB/s a slot travels for 160 us, long against the 10 us it takes to start a copy; four keep
// the bus busy while one is filled.
constexpr size_t kSlotBytes = size_t{8} << 20;
constexpr int kNumSlots = 4;
// Eight threads fill a slot faster than PCIe 5 empties it.
constexpr int kMaxCopyThreads = 8;

absl::Status Check(cudaError_t error, absl::string_view call) {
  return CudaStatus(error, call, "pack_linear");
}

}  // namespace

CopyPool::CopyPool(int num_threads)
    : num_threads_(std::max(num_threads, 1)), start_(num_threads_), done_(num_threads_) {
  for (int i = 1; i < num_threads_; ++i) threads_.emplace_back([this, i] { Work(i); });
}

CopyPool::~CopyPool() {
  stopping_ = true;
  start_.arrive_and_wait();
  for (std::thread& thread : threads_) thread.join();
}

void CopyPool::Copy(void* to, const void* from, size_t bytes) {
  to_ = static_cast<char*>(to);
  from_ = static_cast<const char*>(from);
  bytes_ = bytes;
  start_.arrive_and_wait();
  CopyPart(0);
  done_.arrive_and_wait();
}

void CopyPool::Work(int index) {
  while (true) {
    start_.arrive_and_wait();
    if (stopping_) return;
    CopyPart(index);
    done_.arrive_and_wait();
  }
}

void CopyPool::CopyPart(int index) const {
  // Parts begin at cache lines.
  const size_t part = (bytes_ / num_threads_ + 63) / 64 * 64;
  const size_t begin = std::min(bytes_, part * index);
  const size_t end = index + 1 == num_threads_ ? bytes_ : std::min(bytes_, begin + part);
  std::memcpy(to_ + begin, from_ + begin, end - begin);
}

WeightUploader::~WeightUploader() {
  for (const Slot& slot : slots_) {
    if (slot.free != nullptr) cudaEventDestroy(slot.free);
    if (slot.host != nullptr) cudaFreeHost(slot.host);
  }
  if (staging_ != nullptr) cudaFree(staging_);
}

absl::Status WeightUploader::AllocateSlots() {
  if (!slots_.empty()) return absl::OkStatus();
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  pool_ = std::make_unique<CopyPool>(std::clamp(threads - 1, 1, kMaxCopyThreads));
  slots_.reserve(kNumSlots);
  for (int i = 0; i < kNumSlots; ++i) {
    Slot& slot = slots_.emplace_back();
    PAGODA_RETURN_IF_ERROR(
        Check(cudaHostAlloc(&slot.host, kSlotBytes, cudaHostAllocDefault), "cudaHostAlloc"));
    PAGODA_RETURN_IF_ERROR(
        Check(cudaEventCreateWithFlags(&slot.free, cudaEventDisableTiming), "cudaEventCreate"));
  }
  return absl::OkStatus();
}

absl::Status WeightUploader::AllocateStaging() {
  if (staging_ != nullptr) return absl::OkStatus();
  return Check(cudaMalloc(&staging_, kSlotBytes), "cudaMalloc");
}

absl::Status WeightUploader::RunPiece(const Upload& upload,
                                      const char* source,
                                      char* to,
                                      size_t bytes) {
  Slot* slot = nullptr;
  if (!upload.source_is_pinned) {
    slot = &slots_[next_slot_];
    next_slot_ = (next_slot_ + 1) % slots_.size();
    PAGODA_RETURN_IF_ERROR(Check(cudaEventSynchronize(slot->free), "cudaEventSynchronize"));
    pool_->Copy(slot->host, source, bytes);
    source = static_cast<const char*>(slot->host);
  }
  const bool converts = upload.source_dtype != upload.to_dtype;
  PAGODA_RETURN_IF_ERROR(
      Check(cudaMemcpyAsync(
                converts ? staging_ : to, source, bytes, cudaMemcpyHostToDevice, context_.stream),
            "cudaMemcpyAsync"));
  if (converts) {
    const auto count = static_cast<int64_t>(bytes / DTypeBytes(upload.source_dtype));
    PAGODA_RETURN_IF_ERROR(
        ConvertElements(context_, upload.source_dtype, staging_, upload.to_dtype, to, count));
  }
  if (slot == nullptr) return absl::OkStatus();
  return Check(cudaEventRecord(slot->free, context_.stream), "cudaEventRecord");
}

absl::Status WeightUploader::Run(const Upload& upload) {
  if (!upload.source_is_pinned) PAGODA_RETURN_IF_ERROR(AllocateSlots());
  if (upload.source_dtype != upload.to_dtype) PAGODA_RETURN_IF_ERROR(AllocateStaging());
  const size_t source_bytes = DTypeBytes(upload.source_dtype);
  const size_t to_bytes = DTypeBytes(upload.to_dtype);
  // Pinned memory that needs no conversion goes as a whole.
  const bool whole = upload.source_is_pinned && upload.source_dtype == upload.to_dtype;
  const int64_t piece = whole ? upload.count : static_cast<int64_t>(kSlotBytes / source_bytes);
  const char* source = static_cast<const char*>(upload.source);
  char* to = static_cast<char*>(upload.to);
  for (int64_t done = 0; done < upload.count; done += piece) {
    const auto count = static_cast<size_t>(std::min(piece, upload.count - done));
    PAGODA_RETURN_IF_ERROR(RunPiece(upload,
                                    source + static_cast<size_t>(done) * source_bytes,
                                    to + static_cast<size_t>(done) * to_bytes,
                                    count * source_bytes));
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cuda
