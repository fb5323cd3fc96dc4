#include "engine/guided/token_trie.h"

#include <algorithm>
#include <cstring>

namespace pagoda::engine::guided {

TokenTrie::TokenTrie(std::vector<std::pair<absl::string_view, int32_t>> tokens) {
  tokens.erase(std::remove_if(tokens.begin(),
                              tokens.end(),
                              [](const auto& token) {
                                return token.first.empty() || token.first.size() > kMaxTokenBytes;
                              }),
               tokens.end());
  std::sort(tokens.begin(), tokens.end());
  nodes_.push_back({});
  std::vector<uint32_t> path = {0};
  for (const auto& [bytes, id] : tokens) {
    // The part that the path to the last token shares with this one stays open.
    size_t depth = 0;
    while (depth + 1 < path.size() && depth < bytes.size() &&
           nodes_[path[depth + 1]].byte == static_cast<uint8_t>(bytes[depth])) {
      ++depth;
    }
    for (; path.size() > depth + 1; path.pop_back())
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
    for (; depth < bytes.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.token_begin = static_cast<uint32_t>(tokens_.size()),
                        .byte = static_cast<uint8_t>(bytes[depth]),
                        .depth = static_cast<uint16_t>(depth + 1)});
    }
    tokens_.push_back(id);
  }
  for (; !path.empty(); path.pop_back())
    nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({.end = static_cast<uint32_t>(nodes_.size()),
                    .token_begin = static_cast<uint32_t>(tokens_.size())});
  Index();
}

void TokenTrie::Index() {
  int32_t max_id = -1;
  for (const int32_t id : tokens_) max_id = std::max(max_id, id);
  bytes_of_.assign(static_cast<size_t>(max_id + 1), {0, 0});
  std::string path;
  for (uint32_t i = 1; i < num_nodes(); ++i) {
    const Node& node = nodes_[i];
    path.resize(node.depth - 1U);
    path.push_back(static_cast<char>(node.byte));
    // Its own come before those of the next node, its child or not.
    const uint32_t own_end = nodes_[i + 1].token_begin;
    if (node.token_begin == own_end) continue;
    const auto place =
        std::make_pair(static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(path.size()));
    bytes_ += path;
    max_token_bytes_ = std::max<uint32_t>(max_token_bytes_, node.depth);
    for (uint32_t t = node.token_begin; t < own_end; ++t)
      bytes_of_[static_cast<size_t>(tokens_[t])] = place;
  }
}

absl::string_view TokenTrie::TokenBytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= bytes_of_.size()) return {};
  const auto [begin, size] = bytes_of_[static_cast<size_t>(id)];
  return absl::string_view(bytes_).substr(begin, size);
}

std::string TokenTrie::Serialize() const {
  const uint64_t counts[2] = {nodes_.size(), tokens_.size()};
  std::string out(reinterpret_cast<const char*>(counts), sizeof(counts));
  out.append(reinterpret_cast<const char*>(nodes_.data()), nodes_.size() * sizeof(Node));
  out.append(reinterpret_cast<const char*>(tokens_.data()), tokens_.size() * sizeof(int32_t));
  return out;
}

absl::StatusOr<TokenTrie> TokenTrie::Parse(absl::string_view bytes) {
  const auto bad = [] { return absl::InvalidArgumentError("the bytes are no token tree"); };
  uint64_t counts[2] = {0, 0};
  if (bytes.size() < sizeof(counts)) return bad();
  std::memcpy(counts, bytes.data(), sizeof(counts));
  bytes.remove_prefix(sizeof(counts));
  if (counts[0] < 2 || counts[0] > bytes.size() / sizeof(Node) ||
      counts[1] > bytes.size() / sizeof(int32_t) ||
      bytes.size() != counts[0] * sizeof(Node) + counts[1] * sizeof(int32_t)) {
    return bad();
  }
  TokenTrie trie;
  trie.nodes_.resize(counts[0]);
  std::memcpy(trie.nodes_.data(), bytes.data(), counts[0] * sizeof(Node));
  trie.tokens_.resize(counts[1]);
  if (counts[1] > 0) {
    std::memcpy(
        trie.tokens_.data(), bytes.data() + counts[0] * sizeof(Node), counts[1] * sizeof(int32_t));
  }
  uint32_t depth = 0, token = 0;
  for (uint32_t i = 0; i <= trie.num_nodes(); ++i) {
    const Node& node = trie.nodes_[i];
    const bool is_last = i == trie.num_nodes();
    if (node.token_begin < token || node.token_begin > counts[1]) return bad();
    if (!is_last && (node.end <= i || node.end > trie.num_nodes())) return bad();
    if (!is_last && i > 0 && (node.depth == 0 || node.depth > depth + 1)) return bad();
    if (node.depth > kMaxTokenBytes) return bad();
    depth = node.depth;
    token = node.token_begin;
  }
  // Ids only say where bytes are kept.
  constexpr int32_t kMaxId = 1 << 24;
  for (const int32_t id : trie.tokens_)
    if (id < 0 || id >= kMaxId) return bad();
  trie.Index();
  return trie;
}

}  // namespace pagoda::engine::guided
