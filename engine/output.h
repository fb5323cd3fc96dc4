#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "engine/ids.h"

namespace pagoda::engine {

enum class FinishReason : uint8_t { kStop, kStopSequence, kLength, kCancelled, kDeadline, kError };

// Log-probabilities at one position: the token itself, then the most probable ones, best first.
struct TokenLogprobs {
  struct Entry {
    TokenId token = 0;
    float logprob = 0.0f;
  };
  Entry token;
  int32_t rank = 0;  // of `token`; 1 = most probable; 0: no distribution (first prompt token)
  std::vector<Entry> top;
};

// Sent once per request, with or before its first delta.
struct RequestStarted {
  int32_t num_prompt_tokens = 0;
  int32_t num_cached_tokens = 0;
  int64_t queue_ns = 0;  // arrival to first scheduled step
};

// The end of one sequence.
struct SequenceFinished {
  FinishReason reason = FinishReason::kStop;
  // Set for kStopSequence.
  std::variant<std::monostate, std::string, TokenId> matched_stop;
  // Not OK for kCancelled, kDeadline and kError: what the client is told.
  absl::Status status;
  int32_t num_completion_tokens = 0;
  int64_t first_token_ns = 0;  // arrival to first token; 0: none came
  int64_t total_ns = 0;        // arrival to the end
};

// What one step gave one sequence of a request. Text is valid UTF-8 and may lag behind the tokens.
struct OutputDelta {
  // Not an aggregate: one is made per row and step, and value-initialisation would write it twice.
  OutputDelta() {}

  RequestKey key;
  int32_t index = 0;
  std::string text;
  absl::InlinedVector<TokenId, 4> tokens;
  // Empty, or one per token.
  std::vector<TokenLogprobs> logprobs;
  // Empty, or one per prompt token, with the first delta of index 0.
  std::vector<TokenLogprobs> prompt_logprobs;
  std::optional<RequestStarted> started;
  std::optional<SequenceFinished> finished;
  // This is the request's last delta: every sequence has ended and the engine has forgotten it.
  bool last = false;
};

// Takes the engine's outputs. Called on the engine thread, once per step with all that it gave;
// only hands over: never blocks, locks long or throws.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void Deliver(std::vector<OutputDelta> deltas) = 0;
};

}  // namespace pagoda::engine
