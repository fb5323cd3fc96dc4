#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/metrics.h"
#include "engine/output.h"
#include "engine/sequence.h"
#include "engine/stop_checker.h"

namespace pagoda::engine {

// Collects the deltas of a step, and ends sequences and requests: every request gets its
// RequestStarted once and its last delta once, and is counted once. Draws of a best_of > n request
// are kept back until all have ended; then the n with the highest mean log-probability go out as
// indices 0 to n - 1. Engine thread only.
class OutputBatch {
 public:
  // `metrics` outlives this.
  explicit OutputBatch(EngineMetrics* metrics) : metrics_(metrics) {}

  // Where to append what the sequence gives in this step; valid until the next call for any
  // sequence.
  OutputDelta& Open(Sequence* sequence, int64_t now_ns);

  struct End {
    StopMatch match;
    absl::Status status;
  };
  // The sequence ends. The scheduler has been told.
  void Finish(Sequence* sequence, End end, int64_t now_ns);

  bool empty() const { return deltas_.empty(); }
  void Reserve(size_t num_deltas) { deltas_.reserve(num_deltas); }
  // Gives away what was collected; the batch begins anew.
  std::vector<OutputDelta> Take();
  // Requests whose last delta was added since the last call; the caller empties it.
  std::vector<LiveRequest*>& completed() { return completed_; }

 private:
  // What a request says once, with its first delta or that of index 0.
  void AddFirsts(Sequence* sequence, OutputDelta* delta, int64_t now_ns);
  void Start(LiveRequest* live, OutputDelta* delta, int64_t now_ns);
  void ReleaseRankedDraws(LiveRequest* live, int64_t now_ns);
  void Count(const LiveRequest& live, int64_t now_ns);

  EngineMetrics* const metrics_;
  std::vector<OutputDelta> deltas_;
  std::vector<LiveRequest*> completed_;
};

}  // namespace pagoda::engine
