#include "engine/stop_checker.h"

#include <algorithm>
#include <cstring>

namespace pagoda::engine {
namespace {

StopRules::IdList Sorted(const std::vector<TokenId>& ids) {
  StopRules::IdList sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

bool Contains(const StopRules::IdList& sorted_ids, TokenId id) {
  return std::binary_search(sorted_ids.begin(), sorted_ids.end(), id);
}

}  // namespace

StopRules::StopRules(const StopParams& params, int32_t max_output_tokens)
    : eos_token_ids(params.ignore_eos ? IdList() : Sorted(params.eos_token_ids)),
      stop_token_ids(Sorted(params.stop_token_ids)),
      stop_strings(params.stop_strings.begin(), params.stop_strings.end()),
      include_stop(params.include_stop),
      min_tokens(params.min_tokens),
      max_output_tokens(max_output_tokens) {}

StopChecker::StopChecker(const StopRules* rules,
                         const Tokenizer* tokenizer,
                         bool skip_special_tokens)
    : rules_(rules) {
  if (tokenizer != nullptr) detokenizer_.emplace(tokenizer, skip_special_tokens);
}

absl::optional<StopMatch> StopChecker::Accept(TokenId id,
                                              int32_t num_output_tokens,
                                              std::string* text) {
  const bool may_stop = num_output_tokens > rules_->min_tokens;
  StopMatch match;
  if (may_stop && EndsById(id, &match)) {
    Flush(text);
    return match;
  }
  if (detokenizer_.has_value()) {
    if (!may_stop || rules_->stop_strings.empty()) {
      detokenizer_->Append(id, text);
    } else {
      const size_t num_old_bytes = held_.size();
      detokenizer_->Append(id, &held_);
      if (MatchStopStrings(num_old_bytes, text, &match)) return match;
    }
  }
  if (num_output_tokens >= rules_->max_output_tokens) {
    Flush(text);
    match.reason = FinishReason::kLength;
    return match;
  }
  return absl::nullopt;
}

bool StopChecker::EndsById(TokenId id, StopMatch* match) const {
  if (Contains(rules_->eos_token_ids, id)) {
    match->reason = FinishReason::kStop;
    return true;
  }
  if (Contains(rules_->stop_token_ids, id)) {
    match->reason = FinishReason::kStopSequence;
    match->matched_stop = id;
    return true;
  }
  return false;
}

bool StopChecker::MatchStopStrings(size_t num_old_bytes, std::string* text, StopMatch* match) {
  const std::string* found = nullptr;
  size_t found_end = std::string::npos;
  for (const std::string& stop : rules_->stop_strings) {
    // A match ends among the new bytes: one that ended earlier would have ended the sequence.
    const size_t from = num_old_bytes >= stop.size() ? num_old_bytes - stop.size() + 1 : 0;
    const size_t begin = held_.find(stop, from);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < found_end || (end == found_end && stop.size() > found->size())) {
      found = &stop;
      found_end = end;
    }
  }
  if (found != nullptr) {
    text->append(held_, 0, rules_->include_stop ? found_end : found_end - found->size());
    held_.clear();
    match->reason = FinishReason::kStopSequence;
    match->matched_stop = *found;
    return true;
  }
  const size_t num_shown = held_.size() - NumHeldBytes();
  text->append(held_, 0, num_shown);
  held_.erase(0, num_shown);
  return false;
}

size_t StopChecker::NumHeldBytes() const {
  if (held_.empty()) return 0;
  size_t num_held = 0;
  const char last = held_.back();
  for (const std::string& stop : rules_->stop_strings) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > num_held; --size) {
      // Nearly always the last byte decides.
      if (stop[size - 1] != last) continue;
      if (std::memcmp(held_.data() + held_.size() - size, stop.data(), size) == 0) num_held = size;
    }
  }
  return num_held;
}

void StopChecker::Flush(std::string* text) {
  text->append(held_);
  held_.clear();
  if (detokenizer_.has_value()) detokenizer_->Finish(text);
}

}  // namespace pagoda::engine
