#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/output.h"
#include "engine/request.h"
#include "engine/text/tokenizer.h"

namespace pagoda::engine::simulation {

// What one draw of a request is, from the published rules alone: no engine, no steps, no blocks.
struct ReferenceOutput {
  std::vector<TokenId> tokens;
  std::string text;
  FinishReason reason = FinishReason::kLength;
  double sum_logprob = 0.0;
};

// How workers sample, and what limits an output beside its request.
struct ReferenceModel {
  uint32_t vocab_size = 0;
  int32_t max_model_len = 0;
  const Tokenizer* tokenizer = nullptr;
  // Otherwise FakeStepPipe::NextToken.
  uint32_t (*sample)(const std::vector<uint32_t>& tokens, uint64_t seed) = nullptr;
};

ReferenceOutput MakeReferenceOutput(const ReferenceModel& model,
                                    const Request& request,
                                    int32_t draw);

// The n draws that a client gets of best_of: those with the best mean log-probability, best first.
std::vector<ReferenceOutput> MakeReferenceOutputs(const ReferenceModel& model,
                                                  const Request& request);

}  // namespace pagoda::engine::simulation
