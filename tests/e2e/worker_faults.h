#pragma once

#include <cstdlib>
#include <string>

namespace pagoda::e2e {

// Faults that a worker brings about by itself (parallel/fault_hook.h), for daemons that start while
// this lives.
class WorkerFaults {
 public:
  explicit WorkerFaults(const std::string& hooks) { setenv(kVariable, hooks.c_str(), 1); }
  ~WorkerFaults() { unsetenv(kVariable); }
  WorkerFaults(const WorkerFaults&) = delete;
  WorkerFaults& operator=(const WorkerFaults&) = delete;

 private:
  static constexpr const char* kVariable = "PAGODA_TEST_WORKER_FAULTS";
};

}  // namespace pagoda::e2e
