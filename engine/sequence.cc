#include "engine/sequence.h"

#include <algorithm>
#include <utility>

namespace pagoda::engine {
namespace {

int32_t MaxTotalTokens(const Request& request, int32_t max_model_len) {
  const int64_t num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (!request.stop.max_tokens.has_value()) return max_model_len;
  return static_cast<int32_t>(
      std::min<int64_t>(max_model_len, num_prompt_tokens + *request.stop.max_tokens));
}

// Text is made when it is wanted, or needed to find stop strings.
const Tokenizer* TokenizerFor(const Request& request, const Tokenizer* tokenizer) {
  return request.want_text || !request.stop.stop_strings.empty() ? tokenizer : nullptr;
}

// Null where nothing is drafted. What a constraint or a budget of thoughts allows is known one
// token ahead only, and beams change places.
std::unique_ptr<NgramDrafter> MakeDrafter(const Request& request) {
  const SamplingParams& sampling = request.sampling;
  if (sampling.max_draft_tokens == 0 || sampling.constraint != nullptr ||
      sampling.thoughts != nullptr || sampling.beams.has_value())
    return nullptr;
  auto drafter = std::make_unique<NgramDrafter>(sampling.max_draft_tokens);
  drafter->Add(request.prompt);
  return drafter;
}

}  // namespace

Sequence::Sequence(LiveRequest* request, int32_t index, const Tokenizer* tokenizer)
    : request(request),
      key(request->request.key),
      index(index),
      max_total_tokens(request->max_total_tokens),
      is_prompt_only(request->is_prompt_only),
      wants_text(request->request.want_text),
      wants_logprobs(request->request.sampling.num_logprobs.has_value()),
      ranks_draws(request->ranks_draws),
      is_beam(request->request.sampling.beams.has_value() && !request->is_prompt_only),
      num_known_tokens(request->num_prompt_tokens),
      drafter(request->is_prompt_only ? nullptr : MakeDrafter(request->request)),
      stop_checker(&request->stop_rules, tokenizer, request->request.skip_special_tokens) {
  tables.resize(kNumKvGroups);
}

LiveRequest::LiveRequest(Request r, int32_t max_model_len, const Tokenizer* tokenizer)
    : request(std::move(r)),
      num_prompt_tokens(static_cast<int32_t>(request.prompt.size())),
      max_total_tokens(MaxTotalTokens(request, max_model_len)),
      is_prompt_only(max_total_tokens == num_prompt_tokens),
      ranks_draws(request.best_of > request.n || request.sampling.beams.has_value()),
      stop_rules(request.stop, max_total_tokens - num_prompt_tokens) {
  const int32_t num_sequences = std::max(request.n, request.best_of);
  sequences.reserve(num_sequences);
  for (int32_t i = 0; i < num_sequences; ++i) {
    sequences.emplace_back(this, i, TokenizerFor(request, tokenizer));
  }
  if (ranks_draws) draws.resize(num_sequences);
  if (sequences[0].is_beam) {
    beams = std::make_unique<BeamSearch>(
        *request.sampling.beams, sequences[0].stop_checker, request.sampling.num_logprobs);
  }
  if (!wants_prompt_logprobs()) return;
  prompt_logprobs.resize(num_prompt_tokens);
  for (int32_t i = 0; i < num_prompt_tokens; ++i)
    prompt_logprobs[i].token.token = request.prompt[i];
}

void LiveRequest::HashPrompt(const BlockHasher& hasher, int32_t block_size) {
  root_hash = hasher.Root({.tenant = request.tenant.name, .salt = request.cache_salt});
  BlockHash parent = root_hash;
  const absl::Span<const TokenId> prompt = request.prompt;
  prompt_hashes.reserve(prompt.size() / block_size);
  for (int32_t begin = 0; begin + block_size <= num_prompt_tokens; begin += block_size) {
    parent = hasher.Chain(parent, prompt.subspan(begin, block_size));
    prompt_hashes.push_back(parent);
  }
}

}  // namespace pagoda::engine
