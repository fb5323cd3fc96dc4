#include "engine/model/output_constraints.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Constraints kept for sequences to come.
constexpr size_t kMaxKept = 64;

template <typename Ids>
bool Contains(const Ids& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), static_cast<uint32_t>(id)) != ids.end();
}

}  // namespace

absl::Status OutputConstraints::Apply(const internal::v1::StepPlan& plan, const SlotTable& table) {
  const auto broken = [](const absl::Status& status) {
    return absl::InternalError(absl::StrCat("step plan: ", status.message()));
  };
  if (!plan.vocabulary().empty()) {
    absl::StatusOr<guided::TokenTrie> trie = guided::TokenTrie::Parse(plan.vocabulary());
    if (!trie.ok()) return broken(trie.status());
    maskers_.clear();
    by_age_.clear();
    for (Follower& follower : slots_) follower = {};
    trie_ = std::make_unique<guided::TokenTrie>(*std::move(trie));
  }
  for (const internal::v1::NewSequence& sequence : plan.new_sequences()) {
    const bool has_constraint = sequence.sampling().has_constraint();
    if (trie_ == nullptr && (has_constraint || sequence.sampling().has_thoughts()))
      return absl::InternalError("step plan: a constraint came before the vocabulary");
    if (!has_constraint) continue;
    const internal::v1::OutputConstraint& constraint = sequence.sampling().constraint();
    std::shared_ptr<guided::TokenMasker> masker = MaskerOf(constraint.name());
    if (masker == nullptr) {
      absl::StatusOr<guided::Automaton> automaton =
          guided::Automaton::Parse(constraint.automaton());
      if (!automaton.ok()) return broken(automaton.status());
      masker =
          std::make_shared<guided::TokenMasker>(*std::move(automaton), trie_.get(), vocab_size_);
      maskers_[constraint.name()] = masker;
      by_age_.push_back(constraint.name());
      if (by_age_.size() > kMaxKept) {
        maskers_.erase(by_age_.front());
        by_age_.pop_front();
      }
    }
    Follower& follower = slots_[sequence.slot()];
    follower = {.masker = std::move(masker)};
    Start(follower, table.slot(static_cast<int32_t>(sequence.slot())));
  }
  return absl::OkStatus();
}

std::shared_ptr<guided::TokenMasker> OutputConstraints::MaskerOf(const std::string& name) {
  const auto it = maskers_.find(name);
  return it == maskers_.end() ? nullptr : it->second;
}

void OutputConstraints::Start(Follower& follower, const SlotState& slot) {
  follower.generation = slot.generation;
  follower.machine_generation = follower.masker->machine().generation();
  follower.state = follower.masker->machine().start();
  follower.num_read = static_cast<size_t>(slot.num_prompt_tokens);
  follower.has_ended = false;
}

void OutputConstraints::Follow(Follower& follower, const SlotState& slot) {
  // Another sequence of the same constraint may have made it forget its states.
  const bool is_stale = follower.machine_generation != follower.masker->machine().generation() ||
                        follower.generation != slot.generation;
  if (is_stale) Start(follower, slot);
  for (; follower.num_read < slot.tokens.size(); ++follower.num_read) {
    const int32_t token = slot.tokens[follower.num_read];
    if (Contains(slot.sampling.constraint().end_token_ids(), token)) {
      follower.has_ended = true;
    } else if (!follower.has_ended) {
      follower.state = follower.masker->NextOfToken(follower.state, token);
    }
  }
}

bool OutputConstraints::Mask(int32_t slot_idx,
                             const SlotState& slot,
                             std::vector<int32_t>* allowed,
                             std::vector<int32_t>* masked) {
  Follower& follower = slots_[static_cast<size_t>(slot_idx)];
  // Between masks nobody needs an old state but the followers, who read again.
  follower.masker->Trim();
  Follow(follower, slot);
  guided::Machine& machine = follower.masker->machine();
  const bool may_end = machine.accepts(follower.state);
  const auto& end_ids = slot.sampling.constraint().end_token_ids();
  follower.masker->Mask(follower.state, &mask_);
  follower.is_stuck = mask_.gave_up;
  if (mask_.gave_up) return false;
  if (mask_.lists_allowed) {
    if (may_end) mask_.ids.insert(mask_.ids.end(), end_ids.begin(), end_ids.end());
  } else if (may_end) {
    // End ids are no text, so they are among those that are not allowed.
    mask_.ids.erase(
        std::remove_if(
            mask_.ids.begin(), mask_.ids.end(), [&](int32_t id) { return Contains(end_ids, id); }),
        mask_.ids.end());
  }
  const auto& asked = slot.sampling.allowed_token_ids();
  if (asked.empty()) {
    std::vector<int32_t>* const list = mask_.lists_allowed ? allowed : masked;
    list->insert(list->end(), mask_.ids.begin(), mask_.ids.end());
    follower.is_stuck = mask_.lists_allowed && mask_.ids.empty();
    return !follower.is_stuck;
  }
  const std::vector<uint32_t> bits = mask_.Bits(vocab_size_);
  follower.is_stuck = true;
  for (const uint32_t id : asked) {
    if ((bits[id / 32] >> (id % 32) & 1) == 0) continue;
    allowed->push_back(static_cast<int32_t>(id));
    follower.is_stuck = false;
  }
  return !follower.is_stuck;
}

bool OutputConstraints::Conclude(int32_t slot_idx,
                                 uint64_t generation,
                                 const SlotTable& table,
                                 internal::v1::StepResult* result) {
  const SlotState& slot = table.slot(slot_idx);
  if (!slot.live || slot.generation != generation || !slot.sampling.has_constraint()) return true;
  Follower& follower = slots_[static_cast<size_t>(slot_idx)];
  if (std::exchange(follower.is_stuck, false)) {
    result->add_stuck_slots(static_cast<uint32_t>(slot_idx));
    return false;
  }
  Follow(follower, slot);
  const guided::Machine& machine = follower.masker->machine();
  const bool is_complete =
      follower.has_ended || (machine.accepts(follower.state) && !machine.goes_on(follower.state));
  if (is_complete) result->add_complete_slots(static_cast<uint32_t>(slot_idx));
  return true;
}

}  // namespace pagoda::engine
