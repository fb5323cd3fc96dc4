#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/guided/token_masker.h"
#include "engine/guided/token_trie.h"
#include "engine/model/slot_table.h"
#include "engine/model/thought_budgets.h"

namespace pagoda::engine {

// The constraints of running sequences on the worker: each follows the tokens of its slot as they
// become known, and says which may come next. Constraints of equal name share what they have
// computed. Thread-compatible.
class OutputConstraints {
 public:
  OutputConstraints(int32_t num_slots, int32_t vocab_size)
      : vocab_size_(vocab_size), slots_(static_cast<size_t>(num_slots)), thoughts_(num_slots) {}

  // Takes the vocabulary and the constraints of new sequences. Those with a budget of thoughts need
  // the vocabulary too. REQUIRES: `table` has applied the
  // plan.
  absl::Status Apply(const internal::v1::StepPlan& plan, const SlotTable& table);

  // The ids that may come next, by `allowed` or by what is not `masked`: one of the two gets them.
  // False where there is none; then the sequence is stuck. REQUIRES: the slot has a constraint, and
  // every token is known.
  bool Mask(int32_t slot_idx,
            const SlotState& slot,
            std::vector<int32_t>* allowed,
            std::vector<int32_t>* masked);
  // Whether ForcedToken has to be asked about the token at `position`; all before it must be known
  // then.
  bool MayForce(int32_t slot_idx, const SlotState& slot, int32_t position) const {
    return thoughts_.MayForce(slot_idx, slot, position);
  }
  // The token that has to come at `position`, since the sequence has thought as long as it may.
  // REQUIRES: every token is known if MayForce.
  absl::optional<TokenId> ForcedToken(int32_t slot_idx, const SlotState& slot, int32_t position) {
    if (!MayForce(slot_idx, slot, position)) return absl::nullopt;
    return thoughts_.Forced(slot_idx, slot, *trie_);
  }
  // Tells the result what the last token of the slot's sequence, now known, means to its constraint
  // if it has one: false where it means nothing, since Mask had found none. Does nothing for a
  // sequence that has gone.
  bool Conclude(int32_t slot_idx,
                uint64_t generation,
                const SlotTable& table,
                internal::v1::StepResult* result);

 private:
  struct Follower {
    uint64_t generation = 0;  // of the slot's sequence
    std::shared_ptr<guided::TokenMasker> masker;
    int64_t machine_generation = 0;
    guided::Machine::State state = guided::Machine::kDead;
    size_t num_read = 0;  // tokens, the prompt's among them
    bool has_ended = false;
    bool is_stuck = false;
  };

  std::shared_ptr<guided::TokenMasker> MaskerOf(const std::string& name);
  static void Start(Follower& follower, const SlotState& slot);
  // Reads the tokens of the slot that it has not read.
  static void Follow(Follower& follower, const SlotState& slot);

  const int32_t vocab_size_;
  std::unique_ptr<const guided::TokenTrie> trie_;
  std::vector<Follower> slots_;
  absl::flat_hash_map<std::string, std::shared_ptr<guided::TokenMasker>> maskers_;
  std::deque<std::string> by_age_;
  guided::TokenMask mask_;
  ThoughtBudgets thoughts_;
};

}  // namespace pagoda::engine
