#include "engine/errors.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pagoda::engine {

absl::Status PromptExceedsContextError(int64_t num_prompt_tokens, int64_t max_model_len) {
  return absl::InvalidArgumentError(absl::StrCat(
      "prompt: ", num_prompt_tokens, " tokens exceed the context of ", max_model_len, " tokens"));
}

absl::Status PromptExceedsPoolError(int64_t num_prompt_tokens,
                                    int64_t num_blocks_needed,
                                    int64_t block_size,
                                    int64_t num_blocks) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "prompt: %d tokens need %d KV blocks of %d tokens; the whole pool has %d (%d tokens)",
      num_prompt_tokens,
      num_blocks_needed,
      block_size,
      num_blocks,
      num_blocks * block_size));
}

absl::Status MissingTokenizerError() {
  return absl::InvalidArgumentError(
      "stop strings and constraints need a tokenizer; the model has none");
}

absl::Status QuarantinedError() {
  return absl::InternalError(
      "workers failed at a request with this prompt; it is not tried again for some minutes");
}

absl::Status QueueFullOfRequestsError(int64_t num_waiting, int64_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("queue: ", num_waiting, " sequences wait already; the limit is ", limit));
}

absl::Status QueueFullOfTokensError(int64_t num_waiting, int64_t num_more, int64_t limit) {
  return absl::ResourceExhaustedError(absl::StrCat("queue: ",
                                                   num_waiting,
                                                   " prompt tokens wait already, ",
                                                   num_more,
                                                   " more exceed the limit of ",
                                                   limit));
}

absl::Status DrainingError() {
  return absl::UnavailableError("server is draining and takes no new requests");
}

absl::Status StoppedError(const absl::Status& why) {
  return absl::UnavailableError(absl::StrCat("server has stopped: ", why.message()));
}

absl::Status TooManyRestartsError(uint64_t max_restarts,
                                  int64_t window_ns,
                                  const absl::Status& last) {
  if (max_restarts == 0) return last;
  return absl::UnavailableError(
      absl::StrFormat("workers were lost more than %d times in %.0f s: %s",
                      max_restarts,
                      static_cast<double>(window_ns) * 1e-9,
                      last.message()));
}

absl::Status WorkerLostError() {
  return absl::UnavailableError("the worker that ran this request is lost; try again");
}

absl::Status RequestCancelledError() { return absl::CancelledError("request was cancelled"); }

absl::Status DeadlinePassedError(int64_t elapsed_ns) {
  return absl::DeadlineExceededError(
      absl::StrFormat("deadline passed after %.3f s", static_cast<double>(elapsed_ns) * 1e-9));
}

absl::Status WorkerCulpritError() {
  return absl::InternalError("each worker that ran this request failed; it is not tried again");
}

absl::Status NonFiniteLogitsError() { return absl::InternalError("non-finite logits"); }

absl::Status StuckConstraintError() {
  return absl::FailedPreconditionError(
      "no token continues the text as its constraint demands: the tokens that would are not in the "
      "vocabulary or not allowed, or the constraint has too many readings of the text");
}

absl::Status NoProgressError(int64_t num_blocks_available, int64_t num_blocks) {
  return absl::InternalError(absl::StrFormat(
      "request could not be scheduled on an idle engine (%d of %d KV blocks available)",
      num_blocks_available,
      num_blocks));
}

absl::Status BadStepResultError(uint64_t step_id,
                                absl::string_view what,
                                uint64_t got,
                                uint64_t want) {
  return absl::InternalError(
      absl::StrCat("result of step ", step_id, ": ", what, " is ", got, ", expected ", want));
}

}  // namespace pagoda::engine
