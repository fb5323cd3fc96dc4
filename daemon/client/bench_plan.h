#pragma once

#include <cstdint>
#include <vector>

#include "daemon/client/bench_options.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon {

// What is sent and when: pure functions of options and seed.

// Nanoseconds after the start at which each request of an open loop leaves. REQUIRES:
// options.is_open_loop().
std::vector<int64_t> PlanDepartures(const BenchOptions& options);

// Token ids that prompts are made of: an inner part of the vocabulary, which leaves out where
// special tokens usually are.
struct IdRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};
IdRange PromptIds(uint32_t vocab_size);

// Request `index`. Prompts of random tokens differ from their first tokens after the shared prefix
// on, so that the prefix cache finds nothing; so do those of another seed. REQUIRES: ids.end -
// ids.begin >= 2.
v1::StreamGenerateRequest PlanRequest(const BenchOptions& options,
                                      const IdRange& ids,
                                      int64_t index);

}  // namespace pagoda::daemon
