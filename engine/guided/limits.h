#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pagoda::engine::guided {

// What one constraint may cost. All are counts of work or memory, not times, so that a request is
// taken or refused alike on every machine; together they keep a compilation within some tens of
// milliseconds.
struct Limits {
  size_t max_source_bytes = size_t{256} << 10;
  // Parentheses in each other, schemas in each other.
  int32_t max_depth = 64;
  // Of the automaton with empty edges that parsers make, and of its parts when they have none.
  int32_t max_states = 100'000;
  int64_t max_edges = 400'000;
  // Members of sets of states that are looked at on the way from the one to the other.
  int64_t max_subset_members = 1'000'000;
  // Largest count in a quantifier, minLength, maxItems and the like.
  int32_t max_count = 1'000'000;
  // Ends the compilation with CANCELLED when it becomes true; null: never.
  const std::atomic<bool>* cancelled = nullptr;

  bool is_cancelled() const {
    return cancelled != nullptr && cancelled->load(std::memory_order_relaxed);
  }
};

}  // namespace pagoda::engine::guided
