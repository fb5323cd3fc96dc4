#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pagoda::engine {

// The engine's catalogue of failures: each is worded here and nowhere else.

// INVALID_ARGUMENT: refused at Submit.
absl::Status PromptExceedsContextError(int64_t num_prompt_tokens, int64_t max_model_len);
absl::Status PromptExceedsPoolError(int64_t num_prompt_tokens,
                                    int64_t num_blocks_needed,
                                    int64_t block_size,
                                    int64_t num_blocks);
absl::Status MissingTokenizerError();
// INTERNAL, also refused at Submit.
absl::Status QuarantinedError();

// RESOURCE_EXHAUSTED: the waiting queue is full.
absl::Status QueueFullOfRequestsError(int64_t num_waiting, int64_t limit);
absl::Status QueueFullOfTokensError(int64_t num_waiting, int64_t num_more, int64_t limit);

// ... or as much of it as the tenant may take is.
absl::Status TenantQueueFullOfRequestsError(int64_t num_waiting, int64_t limit);
absl::Status TenantQueueFullOfTokensError(int64_t num_waiting, int64_t num_more, int64_t limit);
// ... or so slow that the request would not run before its deadline.
absl::Status QueueTooSlowError(int64_t wait_ns, int64_t left_ns);

// Name of the payload that says after how many nanoseconds to try again, as a decimal number.
inline constexpr char kRetryAfterPayload[] = "pagoda.dev/retry-after-ns";
// Bounded to what is worth telling a client.
void SetRetryAfter(int64_t wait_ns, absl::Status* status);

// UNAVAILABLE: try another replica, or later.
absl::Status DrainingError();
absl::Status StoppedError(const absl::Status& why);
absl::Status TooManyRestartsError(uint64_t max_restarts,
                                  int64_t window_ns,
                                  const absl::Status& last);
// How the worker ended is for the log: clients are told no process ids and no signals.
absl::Status WorkerLostError();

// Ends of accepted requests.
absl::Status RequestCancelledError();
absl::Status DeadlinePassedError(int64_t elapsed_ns);
absl::Status NonFiniteLogitsError();
absl::Status WorkerCulpritError();
absl::Status StuckConstraintError();
absl::Status NoProgressError(int64_t num_blocks_available, int64_t num_blocks);

// INTERNAL: a result that does not answer its plan; the workers cannot be trusted any more.
absl::Status BadStepResultError(uint64_t step_id,
                                absl::string_view what,
                                uint64_t got,
                                uint64_t want);

}  // namespace pagoda::engine
