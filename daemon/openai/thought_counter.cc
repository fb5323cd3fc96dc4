#include "daemon/openai/thought_counter.h"

#include <algorithm>

namespace pagoda::daemon::openai {

void ThoughtCounter::Add(const google::protobuf::RepeatedField<uint32_t>& ids,
                         const OutputParser& parser) {
  if (tokenizer_ == nullptr || is_decided_) return;
  for (const uint32_t id : ids) {
    waiting_.push_back(num_bytes_);
    num_bytes_ += tokenizer_->TokenBytes(static_cast<engine::TokenId>(id)).size();
  }
  const auto end = std::lower_bound(waiting_.begin(), waiting_.end(), parser.thought_bytes());
  num_tokens_ += static_cast<uint64_t>(end - waiting_.begin());
  waiting_.erase(waiting_.begin(), end);
  is_decided_ = !parser.may_think();
}

void ThoughtCounter::Finish(const OutputParser& parser) {
  if (tokenizer_ == nullptr || is_decided_) return;
  is_decided_ = true;
  // Cut short while it thought.
  if (parser.thought_bytes() > 0) num_tokens_ += waiting_.size();
}

}  // namespace pagoda::daemon::openai
