#pragma once

#include <cstdint>
#include <string>

#include "daemon/client/bench_options.h"

namespace pagoda::daemon {

struct PlannedHttpRequest {
  std::string route;
  std::string body;
  int64_t output_tokens = 0;
};

// Request `index` in OpenAI's shape, a stream that ends with its usage; a pure function of options
// and seed. Prompts that are made up consist of short words, about a token each for every
// tokenizer, and differ from the words after the shared prefix on. REQUIRES: options.http.
PlannedHttpRequest PlanHttpRequest(const BenchOptions& options, int64_t index);

}  // namespace pagoda::daemon
