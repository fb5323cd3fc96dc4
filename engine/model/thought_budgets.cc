#include "engine/model/thought_budgets.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace pagoda::engine {
namespace {

using internal::v1::ThoughtBudget;
using internal::v1::ThoughtTags;

// The text of a token; that of a closing tag which is a special token is not in the vocabulary.
absl::string_view TextOf(TokenId token,
                         const ThoughtBudget& budget,
                         const guided::TokenTrie& vocabulary) {
  for (const ThoughtTags& tags : budget.tags()) {
    if (tags.has_open_token_id() && tags.open_token_id() == static_cast<uint32_t>(token))
      return tags.open();
    if (tags.close_token_ids_size() == 1 && tags.close_token_ids(0) == static_cast<uint32_t>(token))
      return tags.close();
  }
  return vocabulary.TokenBytes(token);
}

}  // namespace

bool ThoughtBudgets::MayForce(int32_t slot_idx, const SlotState& slot, int32_t position) const {
  if (!slot.sampling.has_thoughts()) return false;
  const int64_t num_output = position - slot.num_prompt_tokens;
  if (num_output < static_cast<int64_t>(slot.sampling.thoughts().max_tokens())) return false;
  const Follower& follower = slots_[static_cast<size_t>(slot_idx)];
  return follower.generation != slot.generation || follower.state != State::kDone;
}

absl::optional<TokenId> ThoughtBudgets::Forced(int32_t slot_idx,
                                               const SlotState& slot,
                                               const guided::TokenTrie& vocabulary) {
  const ThoughtBudget& budget = slot.sampling.thoughts();
  Follower& follower = slots_[static_cast<size_t>(slot_idx)];
  if (follower.generation != slot.generation) Start(slot, &follower);
  for (; follower.num_read < slot.tokens.size(); ++follower.num_read) {
    if (follower.state == State::kDone) continue;
    Read(budget, TextOf(slot.tokens[follower.num_read], budget, vocabulary), &follower);
  }
  const int64_t num_forced = follower.num_thoughts - static_cast<int64_t>(budget.max_tokens());
  if (follower.state != State::kThinking || num_forced < 0) return absl::nullopt;
  const auto& close_ids = budget.tags(follower.tag_idx).close_token_ids();
  return static_cast<TokenId>(close_ids[static_cast<int>(num_forced)]);
}

void ThoughtBudgets::Start(const SlotState& slot, Follower* follower) {
  *follower = {.generation = slot.generation,
               .state = slot.sampling.thoughts().is_open() ? State::kThinking : State::kStart,
               .num_read = static_cast<size_t>(slot.num_prompt_tokens)};
}

void ThoughtBudgets::Read(const ThoughtBudget& budget,
                          absl::string_view bytes,
                          Follower* follower) {
  follower->held.append(bytes.data(), bytes.size());
  if (follower->state == State::kStart) return TryOpen(budget, follower);
  ++follower->num_thoughts;
  TryClose(budget, follower);
  // Should a tokenizer not read its own tag: it is not forced twice.
  const int64_t most = static_cast<int64_t>(budget.max_tokens()) +
                       budget.tags(follower->tag_idx).close_token_ids_size();
  if (follower->num_thoughts >= most) follower->state = State::kDone;
}

void ThoughtBudgets::TryOpen(const ThoughtBudget& budget, Follower* follower) {
  follower->held = std::string(absl::StripLeadingAsciiWhitespace(follower->held));
  bool may_open = false;
  for (int i = 0; i < budget.tags_size(); ++i) {
    const std::string& open = budget.tags(i).open();
    if (absl::StartsWith(follower->held, open)) {
      follower->state = State::kThinking;
      follower->tag_idx = i;
      follower->held.erase(0, open.size());
      return TryClose(budget, follower);
    }
    may_open = may_open || absl::StartsWith(open, follower->held);
  }
  if (!may_open) follower->state = State::kDone;
}

void ThoughtBudgets::TryClose(const ThoughtBudget& budget, Follower* follower) {
  const std::string& close = budget.tags(follower->tag_idx).close();
  std::string& held = follower->held;
  if (absl::StrContains(held, close)) {
    follower->state = State::kDone;
  } else if (held.size() >= close.size()) {
    held.erase(0, held.size() - close.size() + 1);
  }
}

}  // namespace pagoda::engine
