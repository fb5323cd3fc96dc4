#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/text/jinja/ast.h"

namespace pagoda::engine::jinja {

struct RenderLimits {
  int64_t max_steps = 200'000;
  size_t max_output_bytes = size_t{64} << 20;
  int max_depth = 64;  // of macro calls
  // Seconds since the epoch, for strftime_now.
  int64_t now_seconds = 0;
};

// Runs a parsed template. INVALID_ARGUMENT: the template raised (raise_exception: its own message
// after "chat template: "), did what it must not, or passed a limit. Thread-safe for one root:
// nothing is changed.
absl::StatusOr<MarkedString> Render(const Node& root,
                                    const Dict& globals,
                                    const RenderLimits& limits);

}  // namespace pagoda::engine::jinja
