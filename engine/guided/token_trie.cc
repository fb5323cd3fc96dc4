#include "engine/guided/token_trie.h"

#include <algorithm>
#include <cstring>

#include "engine/guided/byte_groups.h"

namespace pagoda::engine::guided {
namespace {

// After some bytes of a text.
struct Utf8Place {
  uint8_t low = 0x80, high = 0xBF;  // of the next byte, inside a character
  uint8_t num_left = 0;             // bytes that the character lacks
  bool is_broken = false;           // they are no beginning of a text
};

Utf8Place NextPlace(const Utf8Place& place, uint8_t byte) {
  constexpr Utf8Place kBroken = {.is_broken = true};
  if (place.is_broken) return kBroken;
  if (place.num_left > 0) {
    if (byte < place.low || byte > place.high) return kBroken;
    return {.num_left = static_cast<uint8_t>(place.num_left - 1)};
  }
  if (byte < 0x80) return {};
  for (const LongCharacters& range : kLongCharacterRanges) {
    if (byte < range.first_low || byte > range.first_high) continue;
    return {.low = range.second_low,
            .high = range.second_high,
            .num_left = static_cast<uint8_t>(range.num_more + 1)};
  }
  return kBroken;
}

}  // namespace

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
  IndexBelow();
}

void TokenTrie::IndexBelow() {
  // Where each node is in its character, and its parent.
  std::vector<Utf8Place> places(num_nodes());
  std::vector<uint32_t> parent_of(num_nodes(), 0), path;
  for (uint32_t i = 0; i < num_nodes(); ++i) {
    path.resize(nodes_[i].depth);
    if (i > 0) {
      parent_of[i] = path.back();
      places[i] = NextPlace(places[path.back()], nodes_[i].byte);
    }
    path.push_back(i);
  }
  // From the end: what is below a node is known before its parent looks at it.
  below_.assign(num_nodes(), {});
  for (uint32_t i = num_nodes(); i-- > 1;) {
    const Utf8Place& before = places[parent_of[i]];
    const bool is_long = nodes_[i].byte >= 0x80 && !places[i].is_broken;
    Below& parent = below_[parent_of[i]];
    parent.byte_groups |=
        below_[i].byte_groups | (is_long ? kLongCharacters : 1U << ByteGroup(nodes_[i].byte));
    const bool begins = before.num_left == 0 || places[i].is_broken;
    parent.num_characters =
        std::max(parent.num_characters, below_[i].num_characters + (begins ? 1 : 0));
  }
  for (uint32_t i = 1; i < num_nodes(); ++i)
    if (places[i].num_left > 0 || places[i].is_broken) below_[i].byte_groups = kAnyBytes;
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
