#include "tests/engine/simulation/reference_output.h"

#include <algorithm>
#include <limits>

#include "tests/fakes/fake_step_pipe.h"

namespace pagoda::engine::simulation {
namespace {

bool IsIn(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// The first stop string that is complete in `text` from `begin` on: first by where it ends, then
// the longest. Empty: none.
std::string FindStop(const std::string& text,
                     size_t begin,
                     const std::vector<std::string>& stops,
                     size_t* end) {
  std::string found;
  *end = std::string::npos;
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop, begin);
    if (at == std::string::npos) continue;
    const size_t stop_end = at + stop.size();
    if (stop_end < *end || (stop_end == *end && stop.size() > found.size())) {
      found = stop;
      *end = stop_end;
    }
  }
  return found;
}

}  // namespace

ReferenceOutput MakeReferenceOutput(const ReferenceModel& model,
                                    const Request& request,
                                    int32_t draw) {
  const StopParams& stop = request.stop;
  std::vector<uint32_t> tokens(request.prompt.begin(), request.prompt.end());
  const int32_t room = model.max_model_len - static_cast<int32_t>(tokens.size());
  const int32_t limit =
      std::min(stop.max_tokens.value_or(std::numeric_limits<int32_t>::max()), room);
  const uint64_t seed = request.sampling.seed + static_cast<uint64_t>(draw);
  ReferenceOutput output;
  size_t begin_of_matches = 0;
  for (int32_t count = 1; count <= limit; ++count) {
    const uint32_t token = model.sample != nullptr
                               ? model.sample(tokens, seed)
                               : FakeStepPipe::NextToken(tokens, seed, model.vocab_size);
    output.sum_logprob += static_cast<double>(FakeStepPipe::Logprob(tokens, tokens.size(), token));
    tokens.push_back(token);
    const auto id = static_cast<TokenId>(token);
    output.tokens.push_back(id);
    const bool may_stop = count > stop.min_tokens;
    if (may_stop && !stop.ignore_eos && IsIn(stop.eos_token_ids, id)) {
      output.reason = FinishReason::kStop;
      return output;
    }
    if (may_stop && IsIn(stop.stop_token_ids, id)) {
      output.reason = FinishReason::kStopSequence;
      return output;
    }
    if (model.tokenizer == nullptr) continue;
    output.text += std::string(model.tokenizer->TokenBytes(id));
    if (!may_stop) {
      begin_of_matches = output.text.size();
      continue;
    }
    size_t end = 0;
    const std::string found = FindStop(output.text, begin_of_matches, stop.stop_strings, &end);
    if (found.empty()) continue;
    output.text.resize(stop.include_stop ? end : end - found.size());
    output.reason = FinishReason::kStopSequence;
    return output;
  }
  return output;
}

std::vector<ReferenceOutput> MakeReferenceOutputs(const ReferenceModel& model,
                                                  const Request& request) {
  std::vector<ReferenceOutput> draws;
  for (int32_t i = 0; i < request.best_of; ++i) {
    draws.push_back(MakeReferenceOutput(model, request, i));
  }
  if (request.best_of == request.n) return draws;
  const auto mean = [](const ReferenceOutput& draw) {
    return draw.tokens.empty() ? -std::numeric_limits<double>::infinity()
                               : draw.sum_logprob / static_cast<double>(draw.tokens.size());
  };
  std::stable_sort(
      draws.begin(), draws.end(), [&](const auto& a, const auto& b) { return mean(a) > mean(b); });
  draws.resize(static_cast<size_t>(request.n));
  return draws;
}

}  // namespace pagoda::engine::simulation
