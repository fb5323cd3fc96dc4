#include "engine/model/token_counts.h"

namespace pagoda::engine {

void TokenCounts::Update(const SlotState& slot) {
  if (generation_ != slot.generation) {
    generation_ = slot.generation;
    num_counted_ = 0;
    entries_.clear();
    entry_of_.clear();
  }
  for (; num_counted_ < slot.tokens.size(); ++num_counted_) {
    const TokenId token = slot.tokens[num_counted_];
    const auto [it, added] = entry_of_.emplace(token, entries_.size());
    if (added) entries_.push_back({.token = token});
    if (num_counted_ >= static_cast<size_t>(slot.num_prompt_tokens)) {
      ++entries_[it->second].output_count;
    }
  }
}

}  // namespace pagoda::engine
