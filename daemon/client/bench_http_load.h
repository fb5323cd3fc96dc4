#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/client/bench_load.h"

namespace pagoda::daemon {

// One thread's part of a load on a server of OpenAI's API: a loop over its connections, which it
// keeps for further requests where the server does. Used by its own thread only.
class HttpLoadThread {
 public:
  // REQUIRES: load.options.http.
  HttpLoadThread(const BenchLoad& load,
                 int64_t thread_idx,
                 std::atomic<int64_t>* next_request,
                 int64_t start_ns);
  ~HttpLoadThread();

  void Run();

  std::vector<RequestOutcome>& outcomes() { return outcomes_; }
  double busy() const { return busy_; }

 private:
  struct Call;
  class Loop;

  const BenchLoad& load_;
  const int64_t thread_idx_;
  std::atomic<int64_t>* const next_request_;
  const int64_t start_ns_;
  std::vector<RequestOutcome> outcomes_;
  double busy_ = 0;
};

}  // namespace pagoda::daemon
