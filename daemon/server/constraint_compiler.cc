#include "daemon/server/constraint_compiler.h"

#include <utility>

#include "daemon/server/rpc_error.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {

using engine::guided::CompileConstraint;
using engine::guided::CompiledConstraint;
using engine::guided::ConstraintCache;
using engine::guided::ConstraintSource;

ConstraintCompiler::ConstraintCompiler(Options options)
    : queue_({.num_threads = 1,
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

absl::StatusOr<ConstraintCompiler::Compiled> ConstraintCompiler::Compile(
    const ConstraintSource& source, ConstraintCache* cache, const std::atomic<bool>* cancelled) {
  if (stopping_.load(std::memory_order_relaxed)) return DrainingError();
  if (cancelled->load(std::memory_order_relaxed)) return CallCancelledError();
  // Somebody before may have wanted the same.
  PAGODA_ASSIGN_OR_RETURN(Compiled compiled, cache->Find(source));
  if (compiled != nullptr) return compiled;
  engine::guided::Limits limits = cache->limits();
  limits.cancelled = cancelled;
  idle_.Run([&] {
    made_.reset();
    made_.emplace(CompileConstraint(source, limits));
  });
  if (cancelled->load(std::memory_order_relaxed)) return CallCancelledError();
  if (!made_->ok()) return absl::Status(made_->status().code(), made_->status().message());
  compiled = std::make_shared<CompiledConstraint>(***made_);
  cache->Add(source, compiled);
  return compiled;
}

void ConstraintCompiler::Stop() {
  stopping_.store(true, std::memory_order_relaxed);
  queue_.Stop();
}

}  // namespace pagoda::daemon
