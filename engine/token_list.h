#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "engine/ids.h"

namespace pagoda::engine {

// Tokens of one sequence's output, appended one by one. The newest lie inside the object and move
// out sixteen at a time: a step appends to every sequence, and each one's own heap memory would be
// a cache and a TLB miss. Thread-compatible.
class TokenList {
 public:
  void push_back(TokenId token) {
    if (num_recent_ == kMaxRecent) MoveOut();
    recent_[num_recent_++] = token;
  }
  size_t size() const { return moved_.size() + num_recent_; }
  bool empty() const { return size() == 0; }
  TokenId operator[](size_t i) const {
    return i < moved_.size() ? moved_[i] : recent_[i - moved_.size()];
  }

 private:
  static constexpr size_t kMaxRecent = 16;

  void MoveOut() {
    moved_.insert(moved_.end(), recent_.begin(), recent_.end());
    num_recent_ = 0;
  }

  std::array<TokenId, kMaxRecent> recent_;
  size_t num_recent_ = 0;
  std::vector<TokenId> moved_;
};

}  // namespace pagoda::engine
