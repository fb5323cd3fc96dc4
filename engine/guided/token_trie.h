#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::engine::guided {

// The tokens of a vocabulary by their bytes, as a tree in preorder: what follows a prefix is one
// range, and a prefix that leads nowhere is stepped over at once. Immutable; plain data.
class TokenTrie {
 public:
  struct Node {
    uint32_t end = 0;          // one after the last node below this one
    uint32_t token_begin = 0;  // its own tokens, then those below it: up to node(end).token_begin
    uint8_t byte = 0;          // that leads here
    uint8_t unused = 0;
    uint16_t depth = 0;  // bytes from the root
  };

  // What follows a node.
  struct Below {
    uint32_t byte_groups = 0;     // a bit each; inside a character, kAnyBytes
    uint32_t num_characters = 0;  // of the longest way down; of what is no text, bytes
  };

  // Tokens longer than this are left out: no text needs them.
  static constexpr size_t kMaxTokenBytes = 1024;

  // `tokens`: (bytes, id); those without bytes are left out.
  explicit TokenTrie(std::vector<std::pair<absl::string_view, int32_t>> tokens);

  // Node 0 is the root; the last one is none, and closes the ranges.
  const std::vector<Node>& nodes() const { return nodes_; }
  const Below& below(uint32_t node) const { return below_[node]; }
  uint32_t num_nodes() const { return static_cast<uint32_t>(nodes_.size()) - 1; }
  // In order of their bytes.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  uint32_t max_token_bytes() const { return max_token_bytes_; }
  // The bytes of a token; empty for those that the tree does not hold.
  absl::string_view TokenBytes(int32_t id) const;

  std::string Serialize() const;
  static absl::StatusOr<TokenTrie> Parse(absl::string_view bytes);

 private:
  TokenTrie() = default;
  void Index();
  void IndexBelow();

  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  // ---- Derived.
  std::vector<Below> below_;  // by node
  uint32_t max_token_bytes_ = 0;
  // Bytes of each token by id.
  std::string bytes_;
  std::vector<std::pair<uint32_t, uint32_t>> bytes_of_;
};

}  // namespace pagoda::engine::guided
