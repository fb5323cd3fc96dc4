#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace pagoda::kernels {

// Runs named cases, prints a line for each and a count at the end: one run on a machine with a GPU
// tells everything. Arguments: parts of names; a case runs if its name holds one of them, or if
// there are none.
class CheckRunner {
 public:
  CheckRunner(int argc, char** argv) : num_filters_(argc - 1), filters_(argv + 1) {}

  bool Wants(absl::string_view name) const {
    if (num_filters_ == 0) return true;
    for (int i = 0; i < num_filters_; ++i) {
      if (absl::StrContains(name, filters_[i])) return true;
    }
    return false;
  }

  void Run(const std::string& name, const std::function<absl::Status()>& run) {
    if (!Wants(name)) return;
    const absl::Status status = run();
    if (status.ok()) {
      ++num_passed_;
      std::printf("ok   %s\n", name.c_str());
    } else {
      ++num_failed_;
      std::printf("FAIL %s: %s\n", name.c_str(), std::string(status.message()).c_str());
    }
    std::fflush(stdout);
  }

  // Exit code of main.
  int Finish() const {
    std::printf("%d passed, %d failed\n", num_passed_, num_failed_);
    return num_failed_ == 0 ? 0 : 1;
  }

  // Exit code where there is no device: skipped (77, which CTest knows), or a failure where one
  // must be.
  static int NoDevice(const absl::Status& why) {
    const bool required = std::getenv("PAGODA_REQUIRE_GPU") != nullptr;
    std::printf("%s: %s\n", required ? "FAIL" : "SKIP", why.ToString().c_str());
    std::printf("0 passed, %d failed%s\n", required ? 1 : 0, required ? "" : ", 1 skipped");
    return required ? 1 : 77;
  }

 private:
  const int num_filters_;
  char** const filters_;
  int num_passed_ = 0;
  int num_failed_ = 0;
};

}  // namespace pagoda::kernels
