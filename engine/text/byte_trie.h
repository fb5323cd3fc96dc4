#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/ids.h"

namespace pagoda::engine {

// Spellings to ids, byte by byte. Children lie side by side, sorted by their byte: a node takes 9
// bytes. Immutable; thread-safe.
class ByteTrie {
 public:
  using Node = uint32_t;
  static constexpr Node kRoot = 0;
  static constexpr Node kNoNode = ~Node{0};
  static constexpr TokenId kNoToken = -1;

  // REQUIRES: no spelling is empty or there twice.
  explicit ByteTrie(std::vector<std::pair<absl::string_view, TokenId>> spellings);

  // kNoNode when no spelling goes on with that byte.
  Node Child(Node node, uint8_t byte) const {
    uint32_t low = first_child_[node], high = first_child_[node + 1];
    while (high - low > 8) {
      const uint32_t middle = (low + high) / 2;
      (labels_[middle] <= byte ? low : high) = middle;
    }
    for (; low < high; ++low) {
      if (labels_[low] == byte) return low;
    }
    return kNoNode;
  }
  // kNoToken when no spelling ends at the node.
  TokenId Token(Node node) const { return tokens_[node]; }

 private:
  // By node, breadth first; the children of node n are [first_child_[n], first_child_[n + 1]).
  std::vector<uint32_t> first_child_;
  std::vector<uint8_t> labels_;
  std::vector<TokenId> tokens_;
};

}  // namespace pagoda::engine
