#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "daemon/server/server_metrics.h"
#include "grpcpp/support/status_code_enum.h"
#include "kernels/base/clock.h"
#include "kernels/base/log_limit.h"

namespace pagoda::daemon {

// The value of a W3C `traceparent` header (version 00), if it is one: what comes from clients goes
// back and into the log only then.
absl::optional<std::string> ValidTraceparent(absl::string_view text);

// A generation call as its lines in the log name it. No prompts, no outputs.
struct LoggedRequest {
  std::string id;  // the client's, or one that was made; empty: it was refused before
  std::string tenant;
  std::string traceparent;  // empty: none
  Api api = Api::kGrpc;
  int32_t num_prompt_tokens = 0;
  int32_t num_cached_tokens = 0;
  int64_t num_output_tokens = 0;
};

// One line when a generation starts and one when it ends, at info; where there are more than people
// can read, some stand for many. Thread-safe.
class RequestLog {
 public:
  explicit RequestLog(const Clock* clock) : clock_(*clock) {}

  void NoteStarted(const LoggedRequest& request, int32_t max_tokens, int32_t num_sequences);
  void NoteEnded(const LoggedRequest& request,
                 engine::Outcome outcome,
                 grpc::StatusCode code,
                 int64_t elapsed_ns);

 private:
  // Each kind has its own, so that a flood of one hides no other.
  static constexpr LogLimit::Rate kRate = {.per_second = 50, .burst = 500};

  void Log(LogLimit* limit, absl::string_view line);

  const Clock& clock_;
  LogLimit started_{kRate};
  LogLimit served_{kRate};
  LogLimit cancelled_{kRate};
  LogLimit refused_{kRate};
  LogLimit failed_{kRate};
};

}  // namespace pagoda::daemon
