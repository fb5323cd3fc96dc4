#include "engine/model/tensor_reader.h"

#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Rows of which so much is wanted are read one by one, without what is between; of others, a call
// for each would cost more than to read what is not wanted too.
constexpr size_t kMinPieceBytes = 4096;

size_t ElementBytes(const CheckpointTensor& tensor) {
  return tensor.type == TensorType::kF32 ? 4 : 2;
}

bool IsReadByRow(const ReadJob& job) {
  return job.cols() < job.tensor_cols &&
         static_cast<size_t>(job.cols()) * ElementBytes(*job.tensor) >= kMinPieceBytes;
}

}  // namespace

TensorReader::TensorReader(const Checkpoint& checkpoint,
                           const std::vector<ReadJob>& jobs,
                           Options options)
    : checkpoint_(checkpoint), jobs_(jobs), free_(std::move(options.buffers)) {
  PAGODA_CHECK(!free_.empty() && options.num_threads > 0);
  for (int i = 0; i < options.num_threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

TensorReader::~TensorReader() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

size_t TensorReader::BufferBytes(const ReadJob& job) {
  const int64_t cols = IsReadByRow(job) ? job.cols() : job.tensor_cols;
  return static_cast<size_t>(job.rows() * cols) * ElementBytes(*job.tensor);
}

absl::StatusOr<bool> TensorReader::Take(Filled* filled, bool may_wait) {
  MutexLock lock(&mutex_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !filled_.empty() || !status_.ok();
  };
  if (may_wait) mutex_.Await(absl::Condition(&ready));
  if (!status_.ok()) return status_;
  if (filled_.empty()) return false;
  *filled = filled_.front();
  filled_.pop_front();
  return true;
}

void TensorReader::GiveBack(void* data) {
  MutexLock lock(&mutex_);
  free_.push_back(data);
}

void TensorReader::RunThread() {
  const auto may_read = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || next_job_ == jobs_.size() || !free_.empty();
  };
  while (true) {
    Filled filled;
    {
      MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&may_read));
      if (stopping_ || next_job_ == jobs_.size() || !status_.ok()) return;
      filled.job = jobs_[next_job_++];
      filled.data = free_.back();
      free_.pop_back();
    }
    const absl::Status status = ReadOne(filled.job, filled.data);
    MutexLock lock(&mutex_);
    if (!status.ok()) {
      if (status_.ok()) status_ = status;
      return;
    }
    filled_.push_back(filled);
  }
}

absl::Status TensorReader::ReadOne(const ReadJob& job, void* data) const {
  const size_t element_bytes = ElementBytes(*job.tensor);
  const size_t row_bytes = static_cast<size_t>(job.tensor_cols) * element_bytes;
  const size_t part_bytes = static_cast<size_t>(job.cols()) * element_bytes;
  const size_t skip_bytes = static_cast<size_t>(job.col_begin) * element_bytes;
  char* const base = static_cast<char*>(data);
  if (IsReadByRow(job)) {
    for (size_t row = 0; row < static_cast<size_t>(job.rows()); ++row) {
      const uint64_t begin = (static_cast<uint64_t>(job.row_begin) + row) * row_bytes + skip_bytes;
      PAGODA_RETURN_IF_ERROR(
          checkpoint_.Read(*job.tensor, begin, part_bytes, base + row * part_bytes));
    }
    return absl::OkStatus();
  }
  const absl::Status status = checkpoint_.Read(*job.tensor,
                                               static_cast<uint64_t>(job.row_begin) * row_bytes,
                                               static_cast<size_t>(job.rows()) * row_bytes,
                                               data);
  if (!status.ok() || job.cols() == job.tensor_cols) return status;
  // The wanted columns move together.
  for (size_t row = 0; row < static_cast<size_t>(job.rows()); ++row) {
    std::memmove(base + row * part_bytes, base + row * row_bytes + skip_bytes, part_bytes);
  }
  return status;
}

}  // namespace pagoda::engine
