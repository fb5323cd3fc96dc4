#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/hash/hash.h"
#include "engine/guided/automaton.h"

namespace pagoda::engine::guided {

// Reads bytes by an automaton with a stack. A state is the set of all (place, stack) that what was
// read can have led to; states and the ways between them are made when they are first needed and
// kept, so that reading mostly looks up a table. Stacks share their lower parts.
//
// A repetition is a frame with two counts, however often it may repeat.
//
// Thread-compatible.
class Machine {
 public:
  using State = int32_t;
  // Nothing that begins so is in the language.
  static constexpr State kDead = 0;

  struct Options {
    // Counts at and above this mean the same to Top: more than one token can use up.
    int32_t count_cap = 1 << 20;
    // Members of one state; beyond them the text counts as dead and `overflowed` is set.
    size_t max_members = 4096;
    // Kept before everything is forgotten.
    size_t max_kept_bytes = size_t{32} << 20;
  };

  // `automaton` outlives this.
  Machine(const Automaton* automaton, const Options& options);

  State start() const { return start_; }
  State Next(State state, uint8_t byte) {
    const State next = next_[static_cast<size_t>(state) * num_classes_ + classes_.of[byte]];
    return next != kUnknown ? next : MakeNext(state, classes_.of[byte], byte);
  }
  // What was read is in the language.
  bool accepts(State state) const { return (flags_[static_cast<size_t>(state)] & kAccepts) != 0; }
  // Something more may be read.
  bool goes_on(State state) const { return (flags_[static_cast<size_t>(state)] & kGoesOn) != 0; }
  // Of a state that comes from Top: what was left out of the stack may have been reached.
  bool leaves(State state) const { return (flags_[static_cast<size_t>(state)] & kLeaves) != 0; }

  // Whether every text of at most `num_characters` characters of these groups (byte_groups.h) can
  // be read from `state`, a live one. May say no where it can: only those that lead the same way
  // count.
  bool ReadsAll(State state, uint32_t byte_groups, uint32_t num_characters);

  // The state with only so much of its stacks as the innermost rule and its repetitions need, and
  // with large counts rounded down: many states have one top, and read alike until they leave it,
  // which they do too where such a count is used up.
  State Top(State state);

  // From here on states may be made for so much work, which is counted in members looked at; then
  // whatever needs another is dead, and this has to Forget before it is used again.
  void GrantWork(int64_t work) {
    work_left_ = work;
    gave_up_ = false;
  }
  // Back to any amount of work; whether what was granted did not suffice.
  bool TakeBackWork() {
    work_left_ = std::numeric_limits<int64_t>::max();
    return gave_up_;
  }

  // A state was not made because of max_members or the work that was granted.
  bool overflowed() const { return overflowed_; }
  // True if too much is kept; Forget makes every state but start() invalid.
  bool is_full() const { return kept_bytes_ > options_.max_kept_bytes; }
  void Forget();
  // Counts calls of Forget: states of an older one are invalid.
  int64_t generation() const { return generation_; }
  size_t num_states() const { return flags_.size(); }

 private:
  static constexpr State kUnknown = -1;
  static constexpr uint8_t kAccepts = 1, kGoesOn = 2, kLeaves = 4;
  using Stack = int32_t;
  static constexpr Stack kEmptyStack = 0, kCutStack = 1;

  // A call under way: of call edge `call`, so often more at least and at most (-1: no bound), the
  // one at work included. Of a top: what a count is may be more.
  struct Frame {
    int32_t call = 0;
    int32_t min_left = 0;
    int32_t max_left = 0;
    Stack below = kEmptyStack;
    bool min_is_rounded = false;
    bool max_is_rounded = false;

    friend bool operator==(const Frame&, const Frame&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Frame& f) {
      return H::combine(std::move(h),
                        f.call,
                        f.min_left,
                        f.max_left,
                        f.below,
                        f.min_is_rounded,
                        f.max_is_rounded);
    }
  };
  struct Member {
    int32_t place;  // a state of the automaton that reads bytes
    Stack stack;

    friend bool operator==(const Member&, const Member&) = default;
    friend auto operator<=>(const Member&, const Member&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Member& m) {
      return H::combine(std::move(h), m.place, m.stack);
    }
  };
  struct StateKey {
    std::vector<Member> members = {};
    uint8_t flags = 0;

    friend bool operator==(const StateKey&, const StateKey&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const StateKey& k) {
      return H::combine(std::move(h), k.members, k.flags);
    }
  };

  // Where most characters lead, and the groups of which all do.
  struct Stride {
    State next = kUnknown;
    uint32_t byte_groups = 0;
  };

  State MakeNext(State state, uint8_t byte_class, uint8_t byte);
  Stride MakeStride(State state);
  // Every character of several bytes leads from one state to the other.
  bool LongCharactersLead(State from, State to);
  // Makes the state of everything that `reached_` leads to without reading.
  State MakeState();
  void Reach(int32_t place, Stack stack) { todo_.push_back({place, stack}); }
  // The rule that the top frame called has ended.
  void Return(Stack stack);
  void Enter(const Frame& frame);
  Stack Push(const Frame& frame);
  State Intern(StateKey key);
  Stack Cut(Stack stack);
  void Clear();

  const Automaton& automaton_;
  const Options options_;
  const Automaton::ByteClasses classes_;
  const size_t num_classes_;

  std::vector<Frame> frames_;  // by stack; the first two stand for empty and cut stacks
  absl::flat_hash_map<Frame, Stack> stack_of_;
  std::vector<const StateKey*> keys_;  // by state
  std::vector<uint8_t> flags_;
  std::vector<State> next_;                        // [state, class]
  std::vector<Stride> strides_;                    // by state, those that were asked for
  absl::node_hash_map<StateKey, State> state_of_;  // its keys stay where they are
  State start_ = kDead;
  bool overflowed_ = false;
  bool gave_up_ = false;
  int64_t work_left_ = std::numeric_limits<int64_t>::max();
  size_t kept_bytes_ = 0;
  int64_t generation_ = 0;

  // ---- Of the state being made.
  std::vector<Member> todo_;
  absl::flat_hash_set<Member> seen_;
  uint8_t made_flags_ = 0;
  std::vector<Member> made_;
};

}  // namespace pagoda::engine::guided
