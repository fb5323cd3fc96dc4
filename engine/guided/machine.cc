#include "engine/guided/machine.h"

#include <algorithm>
#include <utility>

namespace pagoda::engine::guided {
namespace {

// Of a hash table's entry beside what it holds.
constexpr size_t kEntryBytes = 48;

}  // namespace

Machine::Machine(const Automaton* automaton, const Options& options)
    : automaton_(*automaton),
      options_(options),
      classes_(automaton->Classes()),
      num_classes_(static_cast<size_t>(classes_.count)) {
  Clear();
}

void Machine::Forget() {
  ++generation_;
  Clear();
}

void Machine::Clear() {
  frames_.assign(2, {});
  stack_of_.clear();
  state_of_.clear();
  keys_.clear();
  flags_.clear();
  next_.clear();
  kept_bytes_ = 0;
  Intern({});  // kDead
  made_flags_ = 0;
  Reach(automaton_.rule_starts[static_cast<size_t>(automaton_.root)], kEmptyStack);
  if (automaton_.accepts_empty != 0) made_flags_ = kAccepts;
  start_ = MakeState();
}

Machine::Stack Machine::Push(const Frame& frame) {
  const auto [it, is_new] = stack_of_.try_emplace(frame, static_cast<Stack>(frames_.size()));
  if (is_new) {
    frames_.push_back(frame);
    kept_bytes_ += 2 * sizeof(Frame) + kEntryBytes;
  }
  return it->second;
}

Machine::State Machine::Intern(StateKey key) {
  const auto [it, is_new] =
      state_of_.try_emplace(std::move(key), static_cast<State>(flags_.size()));
  if (is_new) {
    keys_.push_back(&it->first);
    flags_.push_back(it->first.flags);
    // Nothing follows the dead state but itself.
    next_.resize(next_.size() + num_classes_, it->second == kDead ? kDead : kUnknown);
    kept_bytes_ += it->first.members.size() * sizeof(Member) + num_classes_ * sizeof(State) +
                   sizeof(StateKey) + kEntryBytes;
  }
  return it->second;
}

void Machine::Enter(int32_t call, Stack below, int32_t min_left, int32_t max_left) {
  const Automaton::CallEdge& edge = automaton_.call_edges[static_cast<size_t>(call)];
  const Automaton::State& then = automaton_.states[static_cast<size_t>(edge.to)];
  const bool is_tail = max_left == 1 && then.accepts != 0 && then.byte_begin == then.byte_end &&
                       then.call_begin == then.call_end;
  // Nothing happens between the return of a tail call and that of its caller.
  const Stack stack =
      is_tail ? below
              : Push({.call = call, .min_left = min_left, .max_left = max_left, .below = below});
  Reach(automaton_.rule_starts[static_cast<size_t>(edge.rule)], stack);
}

void Machine::Return(Stack stack) {
  if (stack == kEmptyStack || stack == kCutStack) {
    made_flags_ |= stack == kEmptyStack ? kAccepts : kLeaves;
    return;
  }
  const Frame frame = frames_[static_cast<size_t>(stack)];
  const int32_t min_left = std::max(frame.min_left - 1, 0);
  const int32_t max_left = frame.max_left < 0 ? frame.max_left : frame.max_left - 1;
  if (min_left == 0) Reach(automaton_.call_edges[static_cast<size_t>(frame.call)].to, frame.below);
  if (max_left != 0) Enter(frame.call, frame.below, min_left, max_left);
}

Machine::State Machine::MakeState() {
  seen_.clear();
  made_.clear();
  while (!todo_.empty()) {
    const Member member = todo_.back();
    todo_.pop_back();
    if (!seen_.insert(member).second) continue;
    if (seen_.size() > 4 * options_.max_members || made_.size() > options_.max_members) {
      overflowed_ = true;
      todo_.clear();
      return kDead;
    }
    const Automaton::State& place = automaton_.states[static_cast<size_t>(member.place)];
    if (place.accepts != 0) Return(member.stack);
    for (int32_t i = place.call_begin; i < place.call_end; ++i) {
      const Automaton::CallEdge& edge = automaton_.call_edges[static_cast<size_t>(i)];
      Enter(i, member.stack, edge.min, edge.max);
    }
    if (place.byte_begin != place.byte_end) made_.push_back(member);
  }
  std::sort(made_.begin(), made_.end());
  const auto flags = static_cast<uint8_t>(made_flags_ | (made_.empty() ? 0 : kGoesOn));
  if (flags == 0) return kDead;
  return Intern({made_, flags});
}

Machine::State Machine::MakeNext(State state, uint8_t byte_class, uint8_t byte) {
  todo_.clear();
  made_flags_ = 0;
  for (const Member& member : keys_[static_cast<size_t>(state)]->members) {
    const Automaton::State& place = automaton_.states[static_cast<size_t>(member.place)];
    for (int32_t i = place.byte_begin; i < place.byte_end; ++i) {
      const Automaton::ByteEdge& edge = automaton_.byte_edges[static_cast<size_t>(i)];
      if (edge.low <= byte && byte <= edge.high) Reach(edge.to, member.stack);
    }
  }
  const State next = MakeState();
  next_[static_cast<size_t>(state) * num_classes_ + byte_class] = next;
  return next;
}

Machine::Stack Machine::Cut(Stack stack) {
  std::vector<Frame> kept;
  while (stack != kEmptyStack && stack != kCutStack) {
    const Frame& frame = frames_[static_cast<size_t>(stack)];
    if (automaton_.call_edges[static_cast<size_t>(frame.call)].max == 1) break;
    kept.push_back(frame);
    stack = frame.below;
  }
  Stack cut = kCutStack;
  for (auto frame = kept.rbegin(); frame != kept.rend(); ++frame) {
    const int32_t cap = options_.count_cap;
    frame->below = cut;
    frame->min_left = std::min(frame->min_left, cap);
    if (frame->max_left < 0 || frame->max_left > cap) frame->max_left = cap;
    cut = Push(*frame);
  }
  return cut;
}

Machine::State Machine::Top(State state) {
  if (state == kDead) return kDead;
  StateKey key = {.flags = goes_on(state) ? kGoesOn : uint8_t{0}};
  if (key.flags == 0) return kDead;
  const std::vector<Member>& members = keys_[static_cast<size_t>(state)]->members;
  key.members.reserve(members.size());
  for (const Member& member : members)
    key.members.push_back({.place = member.place, .stack = Cut(member.stack)});
  std::sort(key.members.begin(), key.members.end());
  key.members.erase(std::unique(key.members.begin(), key.members.end()), key.members.end());
  return Intern(std::move(key));
}

}  // namespace pagoda::engine::guided
