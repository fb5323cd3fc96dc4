#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "engine/engine_state.h"
#include "engine/sequence.h"

namespace pagoda::engine {

struct OrderLess {
  bool operator()(const Sequence* a, const Sequence* b) const { return a->order < b->order; }
};

// Shortest first within a priority.
struct ShorterLess {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->order.priority != b->order.priority) return a->order.priority < b->order.priority;
    if (a->num_waiting_tokens != b->num_waiting_tokens)
      return a->num_waiting_tokens < b->num_waiting_tokens;
    return a->order < b->order;
  }
};

// What waits of one tenant, and what it has been given.
struct TenantQueue {
  absl::btree_set<Sequence*, OrderLess> waiting;
  absl::btree_set<Sequence*, ShorterLess> by_length;  // the same
  // Tokens computed for it, each over its weight. Only differences between tenants mean anything.
  double virtual_tokens = 0.0;
  double cost_of_token = 1.0;  // 1 / weight
  int32_t num_running = 0;
  // Who was passed at its cost last, and by sequences of how many tokens.
  ServiceOrder passed;
  int64_t num_passed_tokens = 0;
};

// Whoever goes first for a place in a step: the tenant that has been given less, and within it
// service order.
inline bool GoesBefore(const Sequence& a, const Sequence& b) {
  const double given_a = a.tenant->virtual_tokens;
  const double given_b = b.tenant->virtual_tokens;
  return given_a != given_b ? given_a < given_b : a.order < b.order;
}

// The scheduler's queue, in fair order: virtual token counters (Sheng et al., "Fairness in Serving
// Large Language Models", OSDI 2024). Every token that is computed for a tenant, of prompts and of
// outputs, adds 1 / weight to its counter, and the least counter goes first; so those who always
// have something waiting get tokens in proportion to their weights, however much they send. Who
// comes to an empty queue of its own is lifted to the least counter of those that wait (or else
// run): nobody saves up for later. With one tenant it is service order. Engine thread only.
class WaitingQueue {
 public:
  // Finds the tenant of a sequence that has none yet.
  void Insert(Sequence* sequence);
  void Erase(Sequence* sequence);

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // First in fair order that wants to run, that is, is not held; null: none.
  Sequence* Head() const;
  // First in service order; null: none.
  Sequence* Oldest() const;
  // A sequence of so many tokens has passed the head and taken what it needs.
  static void NotePassed(const Sequence& head, int64_t num_tokens);
  // Tokens of all that did.
  static int64_t NumPassedTokens(const Sequence& head);
  // `most` that may want a place in a step, however many wait: the head, then shortest first within
  // a tenant, in the order in which tenants would go if each sequence got all its tokens.
  void FindCandidates(size_t most, std::vector<Sequence*>* out);
  // All that ever came, by name.
  void DescribeTenants(std::vector<EngineState::Tenant>* out) const;
  // In no order that means anything.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const TenantQueue* tenant : backlogged_) {
      for (Sequence* sequence : tenant->waiting) visit(sequence);
    }
  }

 private:
  TenantQueue* Find(const Tenant& tenant);
  // For a tenant that begins to wait.
  void Lift(TenantQueue* tenant) const;

  // By name; names come from the operator's file, so they are few. Never erased: sequences and
  // counters stay.
  absl::flat_hash_map<std::string, std::unique_ptr<TenantQueue>> tenants_;
  std::vector<TenantQueue*> backlogged_;  // those of which somebody waits
  size_t size_ = 0;

  // FindCandidates's; a member to keep its memory.
  struct Cursor {
    const TenantQueue* tenant;
    absl::btree_set<Sequence*, ShorterLess>::const_iterator next;
    double virtual_tokens;
  };
  std::vector<Cursor> cursors_;
};

}  // namespace pagoda::engine
