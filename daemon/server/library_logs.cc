#include "daemon/server/library_logs.h"

#include <string>

#include <grpc/support/log.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/stubs/logging.h"
#include "kernels/base/log.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {
namespace {

// A flood of broken connections is one event to whoever reads the log.
constexpr absl::Duration kRepeatInterval = absl::Seconds(10);

// When each place in gRPC's code was last heard. Thread-safe.
class RepeatFilter {
 public:
  // Whether the line is to be written; `*num_dropped` counts those since the last one that was.
  bool Admit(const std::string& place, absl::Time now, int* num_dropped) {
    MutexLock lock(&mutex_);
    State& state = states_[place];
    if (now - state.last < kRepeatInterval) {
      ++state.num_dropped;
      return false;
    }
    *num_dropped = state.num_dropped;
    state = {.last = now, .num_dropped = 0};
    return true;
  }

 private:
  struct State {
    absl::Time last = absl::InfinitePast();
    int num_dropped = 0;
  };
  Mutex mutex_;
  absl::flat_hash_map<std::string, State> states_ ABSL_GUARDED_BY(mutex_);
};

void LogGrpc(gpr_log_func_args* args) {
  // gRPC's callback takes no context; the filter lives as long as the log that it is part of.
  static RepeatFilter* const filter = new RepeatFilter;
  int num_dropped = 0;
  if (!filter->Admit(absl::StrCat(args->file, ":", args->line), absl::Now(), &num_dropped)) return;
  std::string line = absl::StrCat("gRPC: ", args->message);
  if (num_dropped > 0) absl::StrAppend(&line, " (and ", num_dropped, " times before)");
  LogLine(args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug, line);
}

}  // namespace

void RouteLibraryLogs() {
  google::protobuf::SetLogHandler(nullptr);
  gpr_set_log_function(LogGrpc);
}

}  // namespace pagoda::daemon
