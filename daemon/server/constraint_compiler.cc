#include "daemon/server/constraint_compiler.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "daemon/server/rpc_error.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {

using engine::guided::CompileConstraint;
using engine::guided::CompiledConstraint;
using engine::guided::ConstraintCache;
using engine::guided::ConstraintSource;

namespace {

absl::Duration ThreadTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

}  // namespace

ConstraintCompiler::ConstraintCompiler(Options options)
    : options_(options),
      allowance_(options.allowance),
      queue_({.num_threads = 1,
              .max_waiting_tasks = options.max_waiting,
              .max_waiting_bytes = options.max_waiting_bytes,
              .thread_name = "constraints",
              .purpose = "compiled"}) {}

ConstraintCompiler::~ConstraintCompiler() { Stop(); }

absl::Status ConstraintCompiler::Post(ConstraintSource source,
                                      ConstraintCache* cache,
                                      const std::atomic<bool>* cancelled,
                                      Done done) {
  const size_t size_bytes = source.size_bytes();
  return queue_.Post(
      size_bytes,
      [this, source = std::move(source), cache, cancelled, done = std::move(done)]() mutable {
        done(Compile(source, cache, cancelled));
      });
}

bool ConstraintCompiler::HasAllowance() {
  const absl::Time now = absl::Now();
  allowance_ += (now - allowance_time_) * options_.allowance_share;
  allowance_ = std::min(allowance_, options_.allowance);
  allowance_time_ = now;
  return allowance_ > absl::ZeroDuration();
}

absl::StatusOr<ConstraintCompiler::Compiled> ConstraintCompiler::Make(
    const ConstraintSource& source, const engine::guided::Limits& limits) {
  if (HasAllowance()) {
    const absl::Duration before = ThreadTime();
    auto compiled = CompileConstraint(source, limits);
    allowance_ -= ThreadTime() - before;
    return compiled;
  }
  idle_.Run([&] {
    made_.reset();
    made_.emplace(CompileConstraint(source, limits));
  });
  if (!made_->ok()) return absl::Status(made_->status().code(), made_->status().message());
  return std::make_shared<CompiledConstraint>(***made_);
}

absl::StatusOr<ConstraintCompiler::Compiled> ConstraintCompiler::Compile(
    const ConstraintSource& source, ConstraintCache* cache, const std::atomic<bool>* cancelled) {
  if (stopping_.load(std::memory_order_relaxed)) return DrainingError();
  if (cancelled->load(std::memory_order_relaxed)) return CallCancelledError();
  // Somebody before may have wanted the same.
  PAGODA_ASSIGN_OR_RETURN(Compiled compiled, cache->Find(source));
  if (compiled != nullptr) return compiled;
  engine::guided::Limits limits = cache->limits();
  limits.cancelled = cancelled;
  absl::StatusOr<Compiled> made = Make(source, limits);
  if (cancelled->load(std::memory_order_relaxed)) return CallCancelledError();
  PAGODA_ASSIGN_OR_RETURN(compiled, std::move(made));
  cache->Add(source, compiled);
  return compiled;
}

void ConstraintCompiler::Stop() {
  stopping_.store(true, std::memory_order_relaxed);
  queue_.Stop();
}

}  // namespace pagoda::daemon
