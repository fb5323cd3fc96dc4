#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/guided/token_trie.h"
#include "engine/model/slot_table.h"

namespace pagoda::engine {

// What running sequences think, on the worker: each one's thoughts are followed from the opening
// tag to the closing one, and where they have taken all the tokens they may, the closing tag has to
// come. A function of the tokens alone, so that it is the same after a preemption.
// Thread-compatible.
class ThoughtBudgets {
 public:
  explicit ThoughtBudgets(int32_t num_slots) : slots_(static_cast<size_t>(num_slots)) {}

  // Whether Forced has to be asked about the token at `position`; all tokens before it must be
  // known then.
  bool MayForce(int32_t slot_idx, const SlotState& slot, int32_t position) const;
  // The token that has to come next, if one has. REQUIRES: the slot has a budget, and every token
  // is known.
  absl::optional<TokenId> Forced(int32_t slot_idx,
                                 const SlotState& slot,
                                 const guided::TokenTrie& vocabulary);

 private:
  enum class State : uint8_t {
    kStart,     // nothing but blanks, or a part of an opening tag
    kThinking,  // after an opening tag
    kDone       // after the closing one, or in an output without thoughts
  };
  struct Follower {
    uint64_t generation = 0;  // of the slot's sequence
    State state = State::kStart;
    int tag_idx = 0;           // while it thinks
    size_t num_read = 0;       // tokens, the prompt's among them
    int32_t num_thoughts = 0;  // tokens after the opening tag
    std::string held;          // the end of what was read, which a tag may begin in
  };

  static void Start(const SlotState& slot, Follower* follower);
  static void Read(const internal::v1::ThoughtBudget& budget,
                   absl::string_view bytes,
                   Follower* follower);
  static void TryOpen(const internal::v1::ThoughtBudget& budget, Follower* follower);
  static void TryClose(const internal::v1::ThoughtBudget& budget, Follower* follower);

  std::vector<Follower> slots_;
};

}  // namespace pagoda::engine
