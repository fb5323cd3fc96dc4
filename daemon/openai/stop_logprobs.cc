#include "daemon/openai/stop_logprobs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pagoda::daemon::openai {

size_t NumStopPositions(const Positions& positions,
                        absl::string_view stop,
                        absl::string_view before) {
  if (positions.empty() || stop.empty()) return 0;
  // The stop string was found when its last byte came, so it ends in the last token.
  const std::string& last = positions.back()->token().token_bytes();
  const size_t window = last.size() + stop.size() - 1;
  std::string tail;
  size_t num_tail = 0;
  while (num_tail < positions.size() && tail.size() < window) {
    const v1::TokenLogprobs& position = *positions[positions.size() - ++num_tail];
    tail.insert(0, position.token().token_bytes());
  }
  if (num_tail == positions.size()) tail.insert(0, before.data(), before.size());
  const size_t match =
      tail.find(stop.data(), tail.size() - std::min(window, tail.size()), stop.size());
  if (match == std::string::npos) return 0;
  size_t begin = tail.size();
  size_t num_stop = 0;
  while (num_stop < num_tail) {
    begin -= positions[positions.size() - 1 - num_stop]->token().token_bytes().size();
    if (begin < match) break;
    ++num_stop;
  }
  return num_stop;
}

void HeldLogprobs::Add(const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& positions,
                       size_t text_bytes) {
  text_bytes_ += text_bytes;
  for (const v1::TokenLogprobs& position : positions) {
    last_begin_ = token_bytes_;
    token_bytes_ += position.token().token_bytes().size();
    held_.push_back({position, last_begin_});
  }
}

void HeldLogprobs::Finish(absl::string_view stop) {
  is_finished_ = true;
  if (max_stop_bytes_ == 0) return;
  Positions positions;
  for (const Held& held : held_) positions.push_back(&held.position);
  held_.resize(held_.size() - NumStopPositions(positions, stop, taken_bytes_));
}

// A stop string ends in the last token or later, and the text ends before it.
size_t HeldLogprobs::num_ready() const {
  if (is_finished_ || max_stop_bytes_ == 0) return held_.size();
  size_t ready = 0;
  while (ready < held_.size() && (held_[ready].begin < text_bytes_ ||
                                  held_[ready].begin + max_stop_bytes_ <= last_begin_)) {
    ++ready;
  }
  return ready;
}

Positions HeldLogprobs::Take() {
  taken_.clear();
  for (size_t ready = num_ready(); ready > 0; --ready) {
    taken_.push_back(std::move(held_.front()));
    held_.pop_front();
  }
  Positions positions;
  for (const Held& held : taken_) {
    positions.push_back(&held.position);
    if (max_stop_bytes_ > 0) taken_bytes_.append(held.position.token().token_bytes());
  }
  if (taken_bytes_.size() > max_stop_bytes_)
    taken_bytes_.erase(0, taken_bytes_.size() - max_stop_bytes_);
  return positions;
}

}  // namespace pagoda::daemon::openai
