#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "daemon/client/bench_load.h"

namespace pagoda::daemon {

// Which requests one thread of a load sends, and when: of an open loop requests thread_idx,
// thread_idx + num_threads, ...; of a closed one as many at once as its share of the places, in
// which all threads draw from one count. Its own thread only.
class BenchSchedule {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  struct Due {
    int64_t request = 0;
    int64_t due_ns = 0;
  };

  // `next_request` is of all threads.
  BenchSchedule(const BenchLoad& load,
                int64_t thread_idx,
                std::atomic<int64_t>* next_request,
                int64_t start_ns)
      : load_(load),
        next_request_(*next_request),
        start_ns_(start_ns),
        next_departure_(thread_idx),
        num_places_(load.options.concurrency / load.options.num_threads +
                    (thread_idx < load.options.concurrency % load.options.num_threads)) {}

  // The next request if it is due, with `num_running` under way; else next_ns() says when.
  std::optional<Due> Take(int64_t num_running) {
    next_ns_ = kNever;
    if (load_.departures_ns.empty()) {
      if (num_running >= num_places_) return std::nullopt;
      const int64_t request = next_request_.fetch_add(1);
      if (request >= load_.num_requests) return std::nullopt;
      return Due{request, load_.clock->NowNs()};
    }
    if (next_departure_ >= load_.num_requests) return std::nullopt;
    const int64_t due_ns = start_ns_ + load_.departures_ns[next_departure_];
    if (due_ns > load_.clock->NowNs()) {
      next_ns_ = due_ns;
      return std::nullopt;
    }
    const Due due = {next_departure_, due_ns};
    next_departure_ += load_.options.num_threads;
    return due;
  }
  // After Take gave nothing: kNever when only the end of a request can make one due, or none is
  // left.
  int64_t next_ns() const { return next_ns_; }

 private:
  const BenchLoad& load_;
  std::atomic<int64_t>& next_request_;
  const int64_t start_ns_;
  int64_t next_departure_;
  const int64_t num_places_;
  int64_t next_ns_ = kNever;
};

// Nanoseconds of processor time that the calling thread has had.
int64_t ThreadCpuNs();

// Notes tokens that have come.
void NoteTokens(int64_t num_tokens,
                int64_t now_ns,
                BenchProgress* progress,
                RequestOutcome* outcome);

}  // namespace pagoda::daemon
