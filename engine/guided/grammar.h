#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/guided/limits.h"

namespace pagoda::engine::guided {

using StateId = int32_t;
using RuleId = int32_t;

// Most times of a repetition without a bound.
inline constexpr int32_t kUnbounded = -1;

// A set of rules over bytes, each an automaton with empty edges, bytes and calls of rules: what
// every kind of constraint is parsed to. A text is in the language if a path of the root reads it.
//
// Made by cursor: a function takes the state to go on from and returns the one where its part ends.
// A limit that is passed is remembered in status(); what is built then is never used.
// Thread-compatible.
class Grammar {
 public:
  struct Edge {
    enum class Kind : uint8_t { kEmpty, kBytes, kCall };
    Kind kind = Kind::kEmpty;
    uint8_t low = 0, high = 0;  // bytes, both included
    RuleId rule = 0;
    int32_t min = 1, max = 1;  // how often in a row; kUnbounded
    StateId to = 0;
  };
  struct Rule {
    std::string name;  // for errors
    StateId start = 0;
    StateId end = 0;
  };

  explicit Grammar(const Limits& limits) : limits_(limits) {}

  RuleId AddRule(absl::string_view name);
  StateId AddState();
  void AddEmpty(StateId from, StateId to) { AddEdge(from, {.to = to}); }
  void AddBytes(StateId from, uint8_t low, uint8_t high, StateId to) {
    AddEdge(from, {.kind = Edge::Kind::kBytes, .low = low, .high = high, .to = to});
  }
  // `min` to `max` times the rule.
  void AddCall(StateId from, RuleId rule, StateId to, int32_t min = 1, int32_t max = 1);

  // ---- By cursor.
  StateId Literal(StateId from, absl::string_view bytes);
  StateId Call(StateId from, RuleId rule, int32_t min = 1, int32_t max = 1);

  void set_root(RuleId root) { root_ = root; }
  RuleId root() const { return root_; }
  const Rule& rule(RuleId id) const { return rules_[static_cast<size_t>(id)]; }
  int32_t num_rules() const { return static_cast<int32_t>(rules_.size()); }
  int32_t num_states() const { return static_cast<int32_t>(edges_.size()); }
  const std::vector<Edge>& edges(StateId state) const { return edges_[static_cast<size_t>(state)]; }
  const Limits& limits() const { return limits_; }
  const absl::Status& status() const { return status_; }
  // Remembers the first failure.
  void Fail(absl::Status status);

 private:
  void AddEdge(StateId from, const Edge& edge);

  const Limits limits_;
  std::vector<Rule> rules_;
  std::vector<std::vector<Edge>> edges_;  // by state
  int64_t num_edges_ = 0;
  RuleId root_ = 0;
  absl::Status status_;
};

}  // namespace pagoda::engine::guided
