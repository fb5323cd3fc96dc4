#pragma once

#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "kernels/base/mutex.h"

namespace pagoda::engine {

// Rows of a tensor to read: [row_begin, row_end) x [col_begin, col_end) of a row-major [*,
// tensor_cols].
struct ReadJob {
  const CheckpointTensor* tensor = nullptr;
  int64_t tensor_cols = 1;
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 1;
  // For the taker.
  bool transposed = false;  // columns of the tensor are rows of the weight
  size_t weight_idx = 0;
  int64_t weight_row = 0;

  int64_t rows() const { return row_end - row_begin; }
  int64_t cols() const { return col_end - col_begin; }
};

// Reads jobs on several threads into a fixed number of buffers, so that reading overlaps with what
// the taker does and memory stays bounded whatever the model's size. Take and GiveBack are for one
// thread.
class TensorReader {
 public:
  struct Options {
    int num_threads = 1;
    // Memory that the caller owns, one entry a buffer; each holds the largest job.
    std::vector<void*> buffers;
  };
  // A job whose values lie in a buffer, row by row without gaps.
  struct Filled {
    ReadJob job;
    void* data = nullptr;
  };

  // `checkpoint` and `jobs` must outlive the reader.
  TensorReader(const Checkpoint& checkpoint, const std::vector<ReadJob>& jobs, Options options);
  ~TensorReader();
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  // Bytes that a job reads into its buffer.
  static size_t BufferBytes(const ReadJob& job);

  // The next job that is ready, in any order. True if `filled` was set; false when `may_wait` is
  // false and none is ready. REQUIRES: fewer jobs taken than there are.
  absl::StatusOr<bool> Take(Filled* filled, bool may_wait) ABSL_LOCKS_EXCLUDED(mutex_);
  // Hands a buffer back to the readers.
  void GiveBack(void* data) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void RunThread() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ReadOne(const ReadJob& job, void* data) const;

  const Checkpoint& checkpoint_;
  const std::vector<ReadJob>& jobs_;
  std::vector<std::thread> threads_;

  Mutex mutex_;
  size_t next_job_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<Filled> filled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::engine
