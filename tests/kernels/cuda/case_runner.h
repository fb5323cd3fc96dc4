#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <functional>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

// Runs named cases in child processes: a kernel that faults or hangs costs its own case, and the
// next ones get a fresh context. The parent never touches the device.

namespace pagoda::kernels::cuda::test {

struct Case {
  std::string name;
  // Returns what went wrong, or "" and a remark in *note.
  std::function<std::string(std::string* note)> run;
};

struct Progress {
  volatile int next = 0;  // case that runs or will
  volatile int passed = 0;
  volatile int failed = 0;
};

// Asks in a child, for the reason above.
inline bool HasDevice() {
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    _exit(cudaGetDeviceCount(&count) == cudaSuccess && count > 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0;
}

// Runs the cases whose name contains one of the filters (all, if there are none). Returns the exit
// code.
inline int RunCases(const std::vector<Case>& all, int argc, char** argv, int timeout_seconds = 25) {
  if (!HasDevice()) {
    const bool required = std::getenv("PAGODA_REQUIRE_GPU") != nullptr;
    std::printf("%s: no usable GPU\n", required ? "FAIL" : "SKIP");
    constexpr int kSkipped = 77;  // as CTest knows it
    return required ? 1 : kSkipped;
  }
  std::vector<const Case*> cases;
  for (const Case& c : all) {
    bool wanted = argc <= 1;
    for (int i = 1; i < argc; ++i) wanted = wanted || c.name.find(argv[i]) != std::string::npos;
    if (wanted) cases.push_back(&c);
  }
  auto* progress = static_cast<Progress*>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  new (progress) Progress;
  const int count = static_cast<int>(cases.size());
  while (progress->next < count) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      while (progress->next < count) {
        const Case& c = *cases[progress->next];
        alarm(timeout_seconds);
        std::string note;
        const std::string error = c.run(&note);
        std::printf("%s %s %s%s\n",
                    error.empty() ? "ok  " : "FAIL",
                    c.name.c_str(),
                    error.c_str(),
                    note.c_str());
        std::fflush(stdout);
        if (error.empty()) {
          progress->passed = progress->passed + 1;
        } else {
          progress->failed = progress->failed + 1;
        }
        progress->next = progress->next + 1;
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (progress->next < count) {
      const bool hung = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
      const std::string name = cases[progress->next]->name;
      std::printf(
          "FAIL %s %s (status %x)\n", name.c_str(), hung ? "did not end in time" : "died", status);
      progress->failed = progress->failed + 1;
      progress->next = progress->next + 1;
      // Device time is dear: a kernel that hangs once is not run again.
      const std::string family = name.substr(0, std::min(name.find('/'), name.size() - 1) + 1);
      while (hung && progress->next < count && cases[progress->next]->name.rfind(family, 0) == 0) {
        std::printf(
            "FAIL %s not run, since %s hung\n", cases[progress->next]->name.c_str(), name.c_str());
        progress->failed = progress->failed + 1;
        progress->next = progress->next + 1;
      }
    }
  }
  std::printf("%s: %d passed, %d failed\n",
              progress->failed == 0 ? "PASS" : "FAIL",
              progress->passed,
              progress->failed);
  return progress->failed == 0 ? 0 : 1;
}

}  // namespace pagoda::kernels::cuda::test
