#include "kernels/base/check.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace pagoda {

void CheckFailed(absl::string_view file, int line, absl::string_view condition) {
  std::fprintf(stderr,
               "pagoda: internal error at %s:%d: check failed: %s\n",
               std::string(file).c_str(),
               line,
               std::string(condition).c_str());
  std::abort();
}

}  // namespace pagoda
