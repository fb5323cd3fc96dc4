#include "engine/guided/grammar.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace pagoda::engine::guided {

void Grammar::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

StateId Grammar::AddState() {
  if (num_states() >= limits_.max_states) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("is too large: it needs more than ", limits_.max_states, " states")));
    return 0;
  }
  if (limits_.is_cancelled()) Fail(absl::CancelledError("nobody waits for it any more"));
  edges_.emplace_back();
  return num_states() - 1;
}

RuleId Grammar::AddRule(absl::string_view name) {
  const StateId start = AddState();
  const StateId end = AddState();
  rules_.push_back({std::string(name), start, end});
  return num_rules() - 1;
}

void Grammar::AddEdge(StateId from, const Edge& edge) {
  if (!status_.ok()) return;
  if (++num_edges_ > limits_.max_edges) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("is too large: it needs more than ", limits_.max_edges, " edges")));
    return;
  }
  edges_[static_cast<size_t>(from)].push_back(edge);
}

void Grammar::AddCall(StateId from, RuleId rule, StateId to, int32_t min, int32_t max) {
  AddEdge(from, {.kind = Edge::Kind::kCall, .rule = rule, .min = min, .max = max, .to = to});
}

StateId Grammar::Literal(StateId from, absl::string_view bytes) {
  for (const char c : bytes) {
    const StateId to = AddState();
    AddBytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    from = to;
  }
  return from;
}

StateId Grammar::Call(StateId from, RuleId rule, int32_t min, int32_t max) {
  const StateId to = AddState();
  AddCall(from, rule, to, min, max);
  return to;
}

}  // namespace pagoda::engine::guided
