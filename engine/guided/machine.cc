#include "engine/guided/machine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "engine/guided/byte_groups.h"

namespace pagoda::engine::guided {
namespace {

// Of a hash table's entry beside what it holds.
constexpr size_t kEntryBytes = 48;

// Counts of a top: a top for each up to the first, and one for those between and above. Tokens of
// more characters than the first are some hundreds of a vocabulary, and are read for each mask.
constexpr int32_t kMaxExactCount = 16;
constexpr int32_t kMaxCount = 32;

// In members looked at: what a state costs beside them.
constexpr int64_t kWorkOfState = 4;
constexpr int64_t kClassesOfWork = 16;

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
  strides_.clear();
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

void Machine::Enter(const Frame& frame) {
  const Automaton::CallEdge& edge = automaton_.call_edges[static_cast<size_t>(frame.call)];
  const Automaton::State& then = automaton_.states[static_cast<size_t>(edge.to)];
  const bool is_tail = frame.max_left == 1 && !frame.max_is_rounded && !frame.min_is_rounded &&
                       then.accepts != 0 && then.byte_begin == then.byte_end &&
                       then.call_begin == then.call_end;
  // Nothing happens between the return of a tail call and that of its caller.
  const Stack stack = is_tail ? frame.below : Push(frame);
  Reach(automaton_.rule_starts[static_cast<size_t>(edge.rule)], stack);
}

void Machine::Return(Stack stack) {
  if (stack == kEmptyStack || stack == kCutStack) {
    made_flags_ |= stack == kEmptyStack ? kAccepts : kLeaves;
    return;
  }
  Frame frame = frames_[static_cast<size_t>(stack)];
  frame.min_left = std::max(frame.min_left - 1, 0);
  if (frame.max_left > 0) --frame.max_left;
  if ((frame.min_is_rounded && frame.min_left == 0) ||
      (frame.max_is_rounded && frame.max_left == 0)) {
    made_flags_ |= kLeaves;
    return;
  }
  if (frame.min_left == 0)
    Reach(automaton_.call_edges[static_cast<size_t>(frame.call)].to, frame.below);
  if (frame.max_left != 0) Enter(frame);
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
      Enter({.call = i, .min_left = edge.min, .max_left = edge.max, .below = member.stack});
    }
    if (place.byte_begin != place.byte_end) made_.push_back(member);
  }
  std::sort(made_.begin(), made_.end());
  const auto flags = static_cast<uint8_t>(made_flags_ | (made_.empty() ? 0 : kGoesOn));
  if (flags == 0) return kDead;
  return Intern({made_, flags});
}

Machine::State Machine::MakeNext(State state, uint8_t byte_class, uint8_t byte) {
  if (work_left_ < 0) {
    overflowed_ = gave_up_ = true;
    return kDead;
  }
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
  // A state costs its row of the table, too.
  work_left_ -= static_cast<int64_t>(seen_.size()) + kWorkOfState +
                static_cast<int64_t>(num_classes_) / kClassesOfWork;
  return next;
}

Machine::Stride Machine::MakeStride(State state) {
  std::array<State, kNumByteGroups> next_of_group;
  next_of_group.fill(kUnknown);
  for (int byte = 0; byte < 256; ++byte) {
    State& of_group = next_of_group[static_cast<size_t>(ByteGroup(static_cast<uint8_t>(byte)))];
    if (of_group == kDead) continue;
    const State next = Next(state, static_cast<uint8_t>(byte));
    of_group = of_group == kUnknown || of_group == next ? next : kDead;
  }
  Stride best;
  for (const State next : next_of_group) {
    if (next == kDead || next == best.next) continue;
    Stride stride = {.next = next};
    for (int group = 0; group < kNumByteGroups; ++group) {
      if (next_of_group[static_cast<size_t>(group)] == next) stride.byte_groups |= 1U << group;
    }
    if (std::popcount(stride.byte_groups) > std::popcount(best.byte_groups)) best = stride;
  }
  if (best.next == kUnknown) return {.next = kDead};
  if (LongCharactersLead(state, best.next)) best.byte_groups |= kLongCharacters;
  return best;
}

bool Machine::LongCharactersLead(State from, State to) {
  std::vector<State> states, next_states;
  const auto read = [&](uint8_t low, uint8_t high) {
    next_states.clear();
    for (const State state : states)
      for (int byte = low; byte <= high; ++byte)
        next_states.push_back(Next(state, static_cast<uint8_t>(byte)));
    std::sort(next_states.begin(), next_states.end());
    next_states.erase(std::unique(next_states.begin(), next_states.end()), next_states.end());
    states.swap(next_states);
  };
  for (const LongCharacters& range : kLongCharacterRanges) {
    states = {from};
    read(range.first_low, range.first_high);
    read(range.second_low, range.second_high);
    for (int i = 0; i < range.num_more; ++i) read(0x80, 0xBF);
    if (states.size() != 1 || states[0] != to) return false;
  }
  return true;
}

bool Machine::ReadsAll(State state, uint32_t byte_groups, uint32_t num_characters) {
  if (byte_groups == kAnyBytes) return false;
  for (; num_characters > 0; --num_characters) {
    if (strides_.size() <= static_cast<size_t>(state)) strides_.resize(flags_.size());
    if (strides_[static_cast<size_t>(state)].next == kUnknown) {
      const Stride made = MakeStride(state);
      strides_[static_cast<size_t>(state)] = made;
      kept_bytes_ += sizeof(Stride);
    }
    const Stride& stride = strides_[static_cast<size_t>(state)];
    if ((byte_groups & ~stride.byte_groups) != 0) return false;
    if (stride.next == state) return true;
    state = stride.next;
  }
  return true;
}

Machine::Stack Machine::Cut(Stack stack) {
  std::vector<Frame> kept;
  while (stack != kEmptyStack && stack != kCutStack) {
    const Frame& frame = frames_[static_cast<size_t>(stack)];
    if (automaton_.call_edges[static_cast<size_t>(frame.call)].max == 1) break;
    kept.push_back(frame);
    stack = frame.below;
  }
  const auto round = [&](int32_t* count, bool* is_rounded) {
    *count = std::min(*count, options_.count_cap);
    if (*count <= kMaxExactCount) return;
    *count = *count < kMaxCount ? kMaxExactCount : kMaxCount;
    *is_rounded = true;
  };
  Stack cut = kCutStack;
  for (auto frame = kept.rbegin(); frame != kept.rend(); ++frame) {
    frame->below = cut;
    round(&frame->min_left, &frame->min_is_rounded);
    round(&frame->max_left, &frame->max_is_rounded);
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
