#include "engine/errors.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pagoda::engine {
namespace {

// A client that comes again at once adds to the load; one that waits longer than this has given up.
constexpr int64_t kMinRetryAfterNs = 1'000'000'000;
constexpr int64_t kMaxRetryAfterNs = 60'000'000'000;

double SecondsOf(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

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

absl::Status TenantQueueFullOfRequestsError(int64_t num_waiting, int64_t limit) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "queue: ", num_waiting, " sequences of this tenant wait already; its limit is ", limit));
}

absl::Status TenantQueueFullOfTokensError(int64_t num_waiting, int64_t num_more, int64_t limit) {
  return absl::ResourceExhaustedError(absl::StrCat("queue: ",
                                                   num_waiting,
                                                   " prompt tokens of this tenant wait already, ",
                                                   num_more,
                                                   " more exceed its limit of ",
                                                   limit));
}

absl::Status QueueTooSlowError(int64_t wait_ns, int64_t left_ns) {
  return absl::ResourceExhaustedError(
      absl::StrFormat("queue: requests wait about %.1f s now; the deadline is in %.1f s",
                      SecondsOf(wait_ns),
                      SecondsOf(left_ns)));
}

void SetRetryAfter(int64_t wait_ns, absl::Status* status) {
  const int64_t bounded = std::clamp(wait_ns, kMinRetryAfterNs, kMaxRetryAfterNs);
  status->SetPayload(kRetryAfterPayload, absl::Cord(absl::StrCat(bounded)));
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
