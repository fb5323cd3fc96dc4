// Groups of devices on this machine's GPUs: prints a line a case.
// Usage: cuda_group_check [--quick] [part of a suite's name ...]
// Suites are TRANSPORT/KIND/RANKSxDEVICES: ipc/processes/2x1 is two processes on one GPU.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda/group_cases.h"

namespace pagoda::kernels::cuda::test {
namespace {

class Suites {
 public:
  Suites(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--quick") == 0) {
        quick_ = true;
      } else {
        filters_.push_back(argv[i]);
      }
    }
  }

  void Ops(Transport transport, const RankSetup& setup, bool quick = false) {
    Run(transport, setup, "ops", [&](Rank& rank) {
      return RunOpCases(rank, transport, quick || quick_);
    });
  }
  void Faults(Transport transport, const RankSetup& setup) {
    Run(transport, setup, "late_rank", [&](Rank& rank) { return RunLateRank(rank, transport); });
    Run(transport, setup, "abort", [&](Rank& rank) { return RunAbort(rank, transport); });
    // Threads cannot be killed, nor a rank that is alone.
    if (setup.kind == RankKind::kThreads || setup.num_ranks == 1) return;
    Run(transport, setup, "killed_rank", [&](Rank& rank) {
      return RunKilledRank(rank, transport);
    });
  }
  int Finish() const {
    std::printf("%s: %d suites passed, %d failed\n",
                num_failed_ == 0 ? "PASS" : "FAIL",
                num_passed_,
                num_failed_);
    return num_failed_ == 0 ? 0 : 1;
  }

 private:
  void Run(Transport transport,
           const RankSetup& setup,
           const char* what,
           const std::function<absl::Status(Rank&)>& run) {
    const std::string name =
        absl::StrCat(transport == Transport::kIpc ? "ipc" : "nccl",
                     "/",
                     setup.kind == RankKind::kThreads ? "threads" : "processes",
                     "/",
                     setup.num_ranks,
                     "x",
                     setup.num_devices,
                     "/",
                     what);
    bool wanted = filters_.empty();
    for (const std::string& filter : filters_) wanted = wanted || absl::StrContains(name, filter);
    if (!wanted) return;
    std::printf("---- %s\n", name.c_str());
    const auto begin = std::chrono::steady_clock::now();
    const std::string wrong = RunRanks(setup, run);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (wrong.empty()) {
      ++num_passed_;
      std::printf("ok   suite %s (%.1f s)\n", name.c_str(), seconds);
    } else {
      ++num_failed_;
      std::printf("FAIL suite %s (%.1f s): %s\n", name.c_str(), seconds, wrong.c_str());
    }
    std::fflush(stdout);
  }

  bool quick_ = false;
  std::vector<std::string> filters_;
  int num_passed_ = 0, num_failed_ = 0;
};

int RunSuites(int argc, char** argv) {
  const int num_devices = NumDevices();
  if (num_devices == 0) {
    const bool required = std::getenv("PAGODA_REQUIRE_GPU") != nullptr;
    std::printf("%s: no usable GPU\n", required ? "FAIL" : "SKIP");
    return required ? 1 : 77;
  }
  constexpr RankKind kProcesses = RankKind::kProcesses;
  constexpr RankKind kThreads = RankKind::kThreads;
  Suites suites(argc, argv);
  // Two processes take turns on a GPU: slow, so with few sizes; as threads their kernels run
  // together.
  suites.Ops(Transport::kIpc, {.kind = kProcesses, .num_ranks = 2}, true);
  suites.Faults(Transport::kIpc, {.kind = kProcesses, .num_ranks = 2});
  for (const int num_ranks : {1, 2, 3, 8}) {
    suites.Ops(Transport::kIpc, {.kind = kThreads, .num_ranks = num_ranks}, num_ranks != 2);
  }
  suites.Faults(Transport::kIpc, {.kind = kThreads, .num_ranks = 3});
  suites.Ops(Transport::kNccl, {.kind = kProcesses, .num_ranks = 1});
  suites.Faults(Transport::kNccl, {.kind = kProcesses, .num_ranks = 1});
  if (num_devices > 1) {
    const RankSetup all = {
        .kind = kProcesses, .num_ranks = num_devices, .num_devices = num_devices};
    suites.Ops(Transport::kIpc, all);
    suites.Faults(Transport::kIpc, all);
    suites.Ops(Transport::kIpc,
               {.kind = kThreads, .num_ranks = num_devices, .num_devices = num_devices},
               true);
    suites.Ops(Transport::kNccl, all);
    suites.Faults(Transport::kNccl, all);
  }
  return suites.Finish();
}

}  // namespace
}  // namespace pagoda::kernels::cuda::test

int main(int argc, char** argv) { return pagoda::kernels::cuda::test::RunSuites(argc, argv); }
