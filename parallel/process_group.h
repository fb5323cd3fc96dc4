#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"

namespace pagoda::parallel {

// The ranks that compute one model together, seen from one of them. Calls are collective: every
// rank makes the same calls in the same order with the same sizes. Data is memory of this rank's
// backend; a call is ordered with the backend's ops and may return before it has run.
// Thread-compatible, but for Abort.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;

  // data[i] becomes the sum of every rank's data[i], the same bits on every rank. kInt32 is
  // refused.
  virtual absl::Status AllReduceSum(void* data, DType dtype, int64_t num_elements) = 0;
  // output (num_ranks * num_bytes) becomes every rank's input (num_bytes), in order of rank.
  virtual absl::Status AllGather(const void* input, void* output, size_t num_bytes) = 0;
  // data becomes root's data.
  virtual absl::Status Broadcast(void* data, size_t num_bytes, int root) = 0;

  // Tells whoever watches over the ranks that this one has come further: all do so at the same
  // places. For ranks that seldom meet here.
  virtual void NoteProgress() {}

  // Makes a call that waits for other ranks return ABORTED, and every later one. Thread-safe.
  virtual void Abort() = 0;
};

}  // namespace pagoda::parallel
