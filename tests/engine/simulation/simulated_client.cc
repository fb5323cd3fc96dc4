#include "tests/engine/simulation/simulated_client.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace pagoda::engine::simulation {

std::string SimulatedClient::Take(const OutputDelta& delta) {
  if (has_ended_) return "a delta after the last";
  if (delta.started.has_value() == has_started_) {
    return has_started_ ? "started twice" : "not started";
  }
  has_started_ = true;
  if (delta.started.has_value()) {
    if (delta.started->num_prompt_tokens != static_cast<int32_t>(request_.prompt.size())) {
      return "another number of prompt tokens";
    }
    if (delta.started->num_cached_tokens >= delta.started->num_prompt_tokens) {
      return "as many tokens from the cache as the prompt has";
    }
  }
  if (delta.index < 0 || delta.index >= request_.n) return "an index that nobody asked for";
  const auto index = static_cast<size_t>(delta.index);
  Output& output = outputs_[index];
  if (output.finished.has_value()) return "a delta after the sequence's end";
  output.tokens.insert(output.tokens.end(), delta.tokens.begin(), delta.tokens.end());
  output.text += delta.text;
  num_tokens_ += static_cast<int64_t>(delta.tokens.size());
  has_tokens_ |= !delta.tokens.empty();
  if (is_compared() && !is_ranked()) {
    std::string wrong = CompareBeginning(output, index);
    if (!wrong.empty()) return wrong;
  }
  if (request_.sampling.num_logprobs.has_value() && delta.logprobs.size() != delta.tokens.size()) {
    return "other numbers of tokens and log-probabilities";
  }
  if (delta.finished.has_value()) {
    output.finished = delta.finished;
    if (!reason_.has_value() || !delta.finished->status.ok()) {
      reason_ = delta.finished->reason;
      status_ = delta.finished->status;
    }
    if (delta.finished->num_completion_tokens != static_cast<int32_t>(output.tokens.size())) {
      return absl::StrCat(
          "counts ", delta.finished->num_completion_tokens, " tokens of ", output.tokens.size());
    }
  }
  if (delta.last) {
    has_ended_ = true;
    for (const Output& each : outputs_) {
      if (!each.finished.has_value()) return "the last delta before a sequence's end";
    }
  }
  return "";
}

std::string SimulatedClient::CompareBeginning(const Output& output, size_t index) const {
  const ReferenceOutput& expected = expected_[index];
  if (output.tokens.size() > expected.tokens.size()) return "tokens beyond the end";
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    if (output.tokens[i] == expected.tokens[i]) continue;
    return absl::StrCat("token ",
                        i,
                        " of sequence ",
                        index,
                        " is ",
                        output.tokens[i],
                        ", expected ",
                        expected.tokens[i]);
  }
  // What is held for a stop string shows where the sequence ends before it is complete.
  if (request_.want_text && !absl::StartsWith(expected.text, output.text) &&
      !absl::StartsWith(output.text, expected.text)) {
    return absl::StrCat("text '", output.text, "' does not begin '", expected.text, "'");
  }
  return "";
}

int64_t SimulatedClient::NumUnread(int64_t now_ns) const {
  if (first_delta_ns == 0) return 0;
  const double seconds = static_cast<double>(now_ns - first_delta_ns) * 1e-9;
  return num_tokens_ - static_cast<int64_t>(seconds * read_tokens_per_s);
}

std::string SimulatedClient::CheckEnd(const Excuses& e) const {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const std::string wrong = CheckSequence(i, e);
    if (!wrong.empty()) return absl::StrCat("sequence ", i, ": ", wrong);
  }
  return "";
}

std::string SimulatedClient::CheckSequence(size_t index, const Excuses& e) const {
  const Output& output = outputs_[index];
  const SequenceFinished& finished = *output.finished;
  switch (finished.reason) {
    case FinishReason::kCancelled:
      if (!e.is_cancelled || !absl::IsCancelled(finished.status)) return "cancelled by nobody";
      return "";
    case FinishReason::kDeadline:
      if (!e.is_past_deadline || !absl::IsDeadlineExceeded(finished.status)) {
        return "a deadline that has not passed";
      }
      return "";
    case FinishReason::kError:
      if (absl::IsUnavailable(finished.status) && e.may_lose_workers) return "";
      if (absl::IsInternal(finished.status) && (e.may_be_blamed || e.may_be_unfinite)) return "";
      return absl::StrCat("an error without a reason: ", finished.status.ToString());
    default:
      break;
  }
  if (!finished.status.ok()) return "an end that is no error has a status";
  // Of ranked draws only those may be left that had ended before the others were cut short.
  const bool is_cut_short = e.is_cancelled || e.is_past_deadline || e.may_be_blamed ||
                            e.may_be_unfinite || e.may_lose_workers;
  if (!is_compared() || (is_ranked() && is_cut_short)) return "";
  std::string wrong = CompareBeginning(output, index);
  if (!wrong.empty()) return wrong;
  const ReferenceOutput& expected = expected_[index];
  if (output.tokens.size() < expected.tokens.size()) {
    // The pool may end it, where it is alone and needs more.
    const auto num_held = static_cast<int64_t>(request_.prompt.size() + output.tokens.size());
    if (finished.reason == FinishReason::kLength && num_held > e.num_pool_tokens) return "";
    return absl::StrCat(
        "ended after ", output.tokens.size(), " of ", expected.tokens.size(), " tokens");
  }
  if (finished.reason != expected.reason) return "ended for another reason";
  if (request_.want_text && output.text != expected.text) {
    return absl::StrCat("text '", output.text, "', expected '", expected.text, "'");
  }
  return "";
}

}  // namespace pagoda::engine::simulation
