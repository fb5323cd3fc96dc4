#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/ids.h"

namespace pagoda::engine {

namespace guided {
struct CompiledConstraint;
}

// Of a step. More would hardly ever be right, and each costs a row.
inline constexpr int32_t kMaxDraftTokens = 16;

// Between which a model thinks before it answers.
struct ThoughtTags {
  std::string open, close;
  std::optional<TokenId> open_id;  // where one token is the tag
  std::vector<TokenId> close_ids;  // not empty
};

// A limit of what an output may think. Immutable.
struct ThoughtBudget {
  int32_t max_tokens = 0;  // the tags not counted
  // Not empty: those that an output may begin with, or, where `is_open`, those whose first one ends
  // the prompt.
  std::vector<ThoughtTags> tags;
  bool is_open = false;
};

// Beam search: the best `width` texts rather than a draw.
struct BeamParams {
  int32_t width = 1;
  float length_penalty = 1.0f;
  bool early_stopping = false;
};

// Sampling of a request, resolved: defaults are in, ranges are checked. Meaning as in
// pagoda/v1/inference.proto.
struct SamplingParams {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0: off
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> allowed_token_ids;       // empty: every id
  std::vector<std::vector<TokenId>> bad_words;  // token sequences never completed
  std::optional<int32_t> num_logprobs;          // top entries beside the sampled token
  std::optional<int32_t> num_prompt_logprobs;
  bool processed_logprobs = false;
  int32_t max_draft_tokens = 0;  // of a step, by n-gram lookup; 0: no speculation
  std::shared_ptr<const guided::CompiledConstraint>
      constraint;  // null: any text; needs a tokenizer
  // Null: no limit. No constraint, no beams; needs a tokenizer.
  std::shared_ptr<const ThoughtBudget> thoughts;
  // Instead of draws: temperature, the filters after it and the seed are not read,
  // log-probabilities are the processed ones. No constraint.
  std::optional<BeamParams> beams;
};

// When a sequence of a request ends.
struct StopParams {
  std::optional<int32_t> max_tokens;  // absent: the rest of the context
  int32_t min_tokens = 0;
  std::vector<std::string> stop_strings;  // not empty each; need a tokenizer
  std::vector<TokenId> stop_token_ids;
  std::vector<TokenId> eos_token_ids;  // of the model; end the sequence unless ignore_eos
  bool include_stop = false;
  bool ignore_eos = false;
};

// Whose request it is. Tenants share no cached blocks, and what the workers compute is divided
// among those that wait.
struct Tenant {
  std::string name;          // empty: of nobody in particular
  double weight = 1.0;       // of its part in what is computed, beside the others'
  double queue_share = 1.0;  // of the waiting queue's bounds that it may take
};

// One accepted request: ids are below the vocabulary, the prompt is not empty and fits the context.
struct Request {
  RequestKey key;
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  StopParams stop;
  int32_t n = 1;
  int32_t best_of = 1;  // the beams' width, where there are beams
  // Lower first, under the priority policy.
  int32_t priority = 0;
  Tenant tenant;
  // Sequences of a tenant share cached blocks only when salts are equal.
  std::string cache_salt;
  // Text is made for outputs (needs a tokenizer).
  bool want_text = true;
  bool skip_special_tokens = true;
  // Clock::NowNs of the arrival, before tokenisation.
  int64_t arrival_ns = 0;
  std::optional<int64_t> deadline_ns;
};

}  // namespace pagoda::engine
