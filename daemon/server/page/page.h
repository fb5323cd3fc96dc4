#pragma once

#include "absl/strings/string_view.h"

namespace pagoda::daemon {

// page.html: what a browser gets at / of the HTTP port, whole.
absl::string_view Page();

// Content-Security-Policy for it: the page loads nothing, and speaks to where it came from only.
extern const char kPagePolicy[];

}  // namespace pagoda::daemon
