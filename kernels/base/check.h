#pragma once

#include "absl/strings/string_view.h"

namespace pagoda {

// Prints the failed condition with its place and aborts.
[[noreturn]] void CheckFailed(absl::string_view file, int line, absl::string_view condition);

}  // namespace pagoda

// For our own bugs only, never for anything that input can cause. Stays on in release builds.
#define PAGODA_CHECK(condition)                                \
  do {                                                         \
    if (!(condition)) [[unlikely]]                             \
      ::pagoda::CheckFailed(__FILE__, __LINE__, #condition);   \
  } while (false)
