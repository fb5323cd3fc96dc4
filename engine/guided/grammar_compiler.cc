#include "engine/guided/grammar_compiler.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::guided {
namespace {

using Edge = Grammar::Edge;
using Subset = std::vector<StateId>;  // sorted

// Facts about rules that hold as soon as one of their paths makes them hold.
class RuleFacts {
 public:
  explicit RuleFacts(const Grammar& grammar)
      : grammar_(grammar),
        nullable(static_cast<size_t>(grammar.num_rules()), false),
        productive(static_cast<size_t>(grammar.num_rules()), false) {
    Settle(&nullable, [this](const Edge& edge) { return IsSkippable(edge); });
    Settle(&productive, [this](const Edge& edge) { return IsPassable(edge); });
  }

  // The edge can be followed without reading anything.
  bool IsSkippable(const Edge& edge) const {
    if (edge.kind == Edge::Kind::kEmpty) return true;
    return edge.kind == Edge::Kind::kCall &&
           (edge.min == 0 || nullable[static_cast<size_t>(edge.rule)]);
  }
  // Some text leads over the edge.
  bool IsPassable(const Edge& edge) const {
    return edge.kind != Edge::Kind::kCall || edge.min == 0 ||
           productive[static_cast<size_t>(edge.rule)];
  }

 private:
  const Grammar& grammar_;

  // Marks rules whose end can be reached over edges that `passes`, until nothing changes. Rules
  // refer to few others, and mostly to ones made before them or after them: few rounds.
  template <typename Passes>
  void Settle(std::vector<bool>* marks, Passes passes) {
    std::vector<StateId> todo;
    std::vector<int32_t> seen(static_cast<size_t>(grammar_.num_states()), -1);
    int32_t round = 0;
    int64_t visits_left = grammar_.limits().max_subset_members;
    for (bool changed = true; changed;) {
      changed = false;
      for (RuleId r = grammar_.num_rules() - 1; r >= 0; --r) {
        if ((*marks)[static_cast<size_t>(r)]) continue;
        ++round;
        todo.assign(1, grammar_.rule(r).start);
        while (!todo.empty()) {
          const StateId s = todo.back();
          todo.pop_back();
          if (std::exchange(seen[static_cast<size_t>(s)], round) == round) continue;
          gave_up |= --visits_left < 0;
          if (gave_up) return;
          if (s == grammar_.rule(r).end) {
            (*marks)[static_cast<size_t>(r)] = changed = true;
            break;
          }
          for (const Edge& edge : grammar_.edges(s))
            if (passes(edge)) todo.push_back(edge.to);
        }
      }
    }
  }

 public:
  std::vector<bool> nullable;
  std::vector<bool> productive;
  bool gave_up = false;  // too many rounds were needed
};

class Compiler {
 public:
  explicit Compiler(const Grammar& grammar)
      : grammar_(grammar),
        facts_(grammar),
        seen_(static_cast<size_t>(grammar.num_states()), 0),
        new_rule_(static_cast<size_t>(grammar.num_rules()), -1) {}

  absl::StatusOr<Automaton> Compile() {
    const RuleId root = grammar_.root();
    if (facts_.gave_up) return TooComplex();
    if (!facts_.productive[static_cast<size_t>(root)])
      return absl::InvalidArgumentError("no text matches it");
    out_.accepts_empty = facts_.nullable[static_cast<size_t>(root)] ? 1 : 0;
    out_.root = NewRule(root);
    for (size_t i = 0; i < order_.size(); ++i) PAGODA_RETURN_IF_ERROR(CompileRule(order_[i]));
    PAGODA_RETURN_IF_ERROR(CheckLeftRecursion());
    return std::move(out_);
  }

 private:
  // A state of the rule at work, before those that lead nowhere are taken out.
  struct Draft {
    Subset subset;
    bool accepts = false;
    std::vector<Automaton::ByteEdge> bytes = {};
    std::vector<Automaton::CallEdge> calls = {};
  };

  RuleId NewRule(RuleId rule) {
    int32_t& id = new_rule_[static_cast<size_t>(rule)];
    if (id < 0) {
      id = static_cast<int32_t>(order_.size());
      order_.push_back(rule);
    }
    return id;
  }

  absl::Status TooComplex() const {
    return absl::InvalidArgumentError(absl::StrCat("is too complex: it needs more than ",
                                                   grammar_.limits().max_states,
                                                   " states without choices"));
  }

  // Everything that empty edges reach.
  absl::Status Close(Subset* subset) {
    ++round_;
    todo_.clear();
    todo_.swap(*subset);
    while (!todo_.empty()) {
      const StateId s = todo_.back();
      todo_.pop_back();
      if (std::exchange(seen_[static_cast<size_t>(s)], round_) == round_) continue;
      subset->push_back(s);
      for (const Edge& edge : grammar_.edges(s))
        if (facts_.IsSkippable(edge)) todo_.push_back(edge.to);
    }
    std::sort(subset->begin(), subset->end());
    num_members_ += static_cast<int64_t>(subset->size());
    if (grammar_.limits().is_cancelled())
      return absl::CancelledError("nobody waits for it any more");
    return num_members_ > grammar_.limits().max_subset_members ? TooComplex() : absl::OkStatus();
  }

  absl::StatusOr<int32_t> DraftOf(Subset subset) {
    PAGODA_RETURN_IF_ERROR(Close(&subset));
    const auto [it, is_new] = draft_of_.try_emplace(subset, static_cast<int32_t>(drafts_.size()));
    if (is_new) {
      if (static_cast<int64_t>(drafts_.size() + out_.states.size()) > grammar_.limits().max_states)
        return TooComplex();
      const bool accepts = std::binary_search(subset.begin(), subset.end(), end_);
      drafts_.push_back({.subset = std::move(subset), .accepts = accepts});
    }
    return it->second;
  }

  absl::Status CompileRule(RuleId rule) {
    drafts_.clear();
    draft_of_.clear();
    end_ = grammar_.rule(rule).end;
    // The start is a state of its own: it never accepts, whatever a loop that comes back does.
    Subset start = {grammar_.rule(rule).start};
    PAGODA_RETURN_IF_ERROR(Close(&start));
    drafts_.push_back({.subset = std::move(start)});
    for (size_t i = 0; i < drafts_.size(); ++i) {
      PAGODA_RETURN_IF_ERROR(AddByteEdges(i));
      PAGODA_RETURN_IF_ERROR(AddCallEdges(i));
    }
    return Keep();
  }

  absl::Status AddByteEdges(size_t draft) {
    struct Bound {
      int32_t byte;
      bool opens;
      StateId to;
    };
    std::vector<Bound> bounds;
    for (const StateId s : drafts_[draft].subset) {
      for (const Edge& edge : grammar_.edges(s)) {
        if (edge.kind != Edge::Kind::kBytes) continue;
        bounds.push_back({edge.low, true, edge.to});
        bounds.push_back({edge.high + 1, false, edge.to});
      }
    }
    std::sort(bounds.begin(), bounds.end(), [](const Bound& a, const Bound& b) {
      return a.byte < b.byte;
    });
    std::map<StateId, int32_t> open;  // with how many edges lead there
    for (size_t i = 0; i < bounds.size();) {
      const int32_t low = bounds[i].byte;
      for (; i < bounds.size() && bounds[i].byte == low; ++i) {
        int32_t& count = open[bounds[i].to];
        count += bounds[i].opens ? 1 : -1;
        if (count == 0) open.erase(bounds[i].to);
      }
      if (open.empty() || i == bounds.size()) continue;
      Subset subset;
      for (const auto& [state, count] : open) subset.push_back(state);
      PAGODA_ASSIGN_OR_RETURN(const int32_t to, DraftOf(std::move(subset)));
      auto& bytes = drafts_[draft].bytes;
      const auto high = static_cast<uint8_t>(bounds[i].byte - 1);
      if (!bytes.empty() && bytes.back().to == to && bytes.back().high + 1 == low) {
        bytes.back().high = high;
      } else {
        bytes.push_back({.low = static_cast<uint8_t>(low), .high = high, .to = to});
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddCallEdges(size_t draft) {
    std::map<std::array<int32_t, 3>, Subset> calls;  // (rule, min, max)
    for (const StateId s : drafts_[draft].subset) {
      for (const Edge& edge : grammar_.edges(s)) {
        if (edge.kind != Edge::Kind::kCall || edge.max == 0) continue;
        if (!facts_.productive[static_cast<size_t>(edge.rule)]) continue;
        // The way around the call is an empty edge (IsSkippable), and so is the rule's empty text.
        const bool is_nullable = facts_.nullable[static_cast<size_t>(edge.rule)];
        const int32_t min = is_nullable ? 1 : std::max(edge.min, 1);
        calls[{edge.rule, min, edge.max}].push_back(edge.to);
      }
    }
    for (auto& [key, targets] : calls) {
      PAGODA_ASSIGN_OR_RETURN(const int32_t to, DraftOf(std::move(targets)));
      drafts_[draft].calls.push_back(
          {.rule = NewRule(key[0]), .min = key[1], .max = key[2], .to = to});
    }
    return absl::OkStatus();
  }

  // Moves the drafts that reach the end to the automaton.
  absl::Status Keep() {
    const size_t count = drafts_.size();
    std::vector<std::vector<int32_t>> sources(count);
    std::vector<int32_t> todo;
    std::vector<int32_t> kept(count, -1);
    for (size_t i = 0; i < count; ++i) {
      for (const auto& edge : drafts_[i].bytes)
        sources[static_cast<size_t>(edge.to)].push_back(static_cast<int32_t>(i));
      for (const auto& edge : drafts_[i].calls)
        sources[static_cast<size_t>(edge.to)].push_back(static_cast<int32_t>(i));
      if (drafts_[i].accepts) todo.push_back(static_cast<int32_t>(i));
    }
    while (!todo.empty()) {
      const auto i = static_cast<size_t>(todo.back());
      todo.pop_back();
      if (std::exchange(kept[i], 0) == 0) continue;
      todo.insert(todo.end(), sources[i].begin(), sources[i].end());
    }
    const auto base = static_cast<int32_t>(out_.states.size());
    int32_t next = base;
    kept[0] = 0;  // a rule that reads nothing but the empty text keeps its start
    for (int32_t& id : kept)
      if (id == 0) id = next++;
    out_.rule_starts.push_back(base);
    for (size_t i = 0; i < count; ++i) {
      if (kept[i] < 0) continue;
      Automaton::State state = {.byte_begin = static_cast<int32_t>(out_.byte_edges.size()),
                                .call_begin = static_cast<int32_t>(out_.call_edges.size()),
                                .accepts = drafts_[i].accepts ? 1 : 0};
      for (auto edge : drafts_[i].bytes) {
        edge.to = kept[static_cast<size_t>(edge.to)];
        if (edge.to >= 0) out_.byte_edges.push_back(edge);
      }
      for (auto edge : drafts_[i].calls) {
        edge.to = kept[static_cast<size_t>(edge.to)];
        if (edge.to >= 0) out_.call_edges.push_back(edge);
      }
      state.byte_end = static_cast<int32_t>(out_.byte_edges.size());
      state.call_end = static_cast<int32_t>(out_.call_edges.size());
      out_.states.push_back(state);
    }
    const auto num_edges = static_cast<int64_t>(out_.byte_edges.size() + out_.call_edges.size());
    return num_edges > grammar_.limits().max_edges ? TooComplex() : absl::OkStatus();
  }

  // A rule that calls itself first would call itself for ever.
  absl::Status CheckLeftRecursion() const {
    enum class Mark : uint8_t { kNew, kOpen, kDone };
    std::vector<Mark> marks(order_.size(), Mark::kNew);
    struct Visit {
      int32_t rule;
      int32_t next_call;
    };
    for (size_t first = 0; first < order_.size(); ++first) {
      if (marks[first] != Mark::kNew) continue;
      marks[first] = Mark::kOpen;
      std::vector<Visit> path = {{static_cast<int32_t>(first), CallBegin(first)}};
      while (!path.empty()) {
        Visit& visit = path.back();
        const auto rule = static_cast<size_t>(visit.rule);
        if (visit.next_call == CallEnd(rule)) {
          marks[rule] = Mark::kDone;
          path.pop_back();
          continue;
        }
        const int32_t called = out_.call_edges[static_cast<size_t>(visit.next_call++)].rule;
        Mark& mark = marks[static_cast<size_t>(called)];
        if (mark == Mark::kOpen) {
          return absl::InvalidArgumentError(
              absl::StrCat("rule ",
                           grammar_.rule(order_[static_cast<size_t>(called)]).name,
                           " calls itself before it reads anything"));
        }
        if (mark == Mark::kDone) continue;
        mark = Mark::kOpen;
        path.push_back({called, CallBegin(static_cast<size_t>(called))});
      }
    }
    return absl::OkStatus();
  }
  int32_t CallBegin(size_t rule) const {
    return out_.states[static_cast<size_t>(out_.rule_starts[rule])].call_begin;
  }
  int32_t CallEnd(size_t rule) const {
    return out_.states[static_cast<size_t>(out_.rule_starts[rule])].call_end;
  }

  const Grammar& grammar_;
  const RuleFacts facts_;
  std::vector<int32_t> seen_;
  int32_t round_ = 0;
  std::vector<StateId> todo_;
  int64_t num_members_ = 0;

  std::vector<int32_t> new_rule_;  // by rule of the grammar; -1: not called so far
  std::vector<RuleId> order_;      // the grammar's rules, by rule of the automaton
  Automaton out_;

  // ---- Of the rule at work.
  StateId end_ = 0;
  std::vector<Draft> drafts_;
  absl::flat_hash_map<Subset, int32_t> draft_of_;
};

}  // namespace

absl::StatusOr<Automaton> CompileGrammar(const Grammar& grammar) {
  PAGODA_RETURN_IF_ERROR(grammar.status());
  return Compiler(grammar).Compile();
}

}  // namespace pagoda::engine::guided
