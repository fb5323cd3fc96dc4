#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/guided/limits.h"
#include "kernels/base/mutex.h"

namespace pagoda::engine::guided {

// What an output has to be, as a request says it.
struct ConstraintSource {
  enum class Kind : uint8_t { kJsonSchema, kJsonObject, kRegex, kGrammar, kChoice };
  Kind kind = Kind::kJsonObject;
  std::string text = {};                  // of all but kJsonObject and kChoice
  std::vector<std::string> choices = {};  // kChoice

  size_t size_bytes() const;
};

// The same compiled: the bytes of an Automaton, and a name for its content. Immutable.
struct CompiledConstraint {
  std::string name;  // of the content: 128 bits of XXH3 and the length
  std::string automaton;
};

// INVALID_ARGUMENT saying what is wrong with the source, in bounded time and memory.
absl::StatusOr<std::shared_ptr<const CompiledConstraint>> CompileConstraint(
    const ConstraintSource& source, const Limits& limits);

// Keeps the constraints that were compiled last. Thread-safe; two threads that want the same at
// once may both compile it. Its lock is never held while anything is compiled.
class ConstraintCache {
 public:
  explicit ConstraintCache(size_t max_kept = 256, const Limits& limits = Limits())
      : max_kept_(max_kept), limits_(limits) {}

  absl::StatusOr<std::shared_ptr<const CompiledConstraint>> Get(const ConstraintSource& source);
  // Null when it is not here; INVALID_ARGUMENT for a source that is too long to be compiled.
  absl::StatusOr<std::shared_ptr<const CompiledConstraint>> Find(const ConstraintSource& source);
  void Add(const ConstraintSource& source, std::shared_ptr<const CompiledConstraint> compiled);
  const Limits& limits() const { return limits_; }

 private:
  const size_t max_kept_;
  const Limits limits_;
  Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<const CompiledConstraint>> kept_
      ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> by_age_ ABSL_GUARDED_BY(mutex_);
  size_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace pagoda::engine::guided
