#include "engine/guided/token_masker.h"

#include <algorithm>
#include <utility>

namespace pagoda::engine::guided {
namespace {

// Nodes of a subtree that is worth a look at all of it.
constexpr uint32_t kLargeSubtree = 8;

// Of one mask, in a third of a second. Masks of schemas take a hundredth of it, and one that looks
// at every state of the largest automaton that Limits allow, a list of many thousand words, two
// thirds.
constexpr int64_t kMaxWork = 1'000'000;

// Ids in kept parts of masks before they are forgotten.
constexpr size_t kMaxKeptIds = size_t{8} << 20;

}  // namespace

std::vector<uint32_t> TokenMask::Bits(int32_t vocab_size) const {
  std::vector<uint32_t> bits((static_cast<size_t>(vocab_size) + 31) / 32, lists_allowed ? 0U : ~0U);
  for (const int32_t id : ids) bits[static_cast<size_t>(id) / 32] ^= 1U << (id % 32);
  if (!lists_allowed && vocab_size % 32 != 0) bits.back() &= (1U << (vocab_size % 32)) - 1;
  return bits;
}

TokenMasker::TokenMasker(Automaton automaton, const TokenTrie* trie, int32_t vocab_size)
    : automaton_(std::move(automaton)),
      trie_(*trie),
      vocab_size_(vocab_size),
      machine_(&automaton_, {.count_cap = static_cast<int32_t>(trie->max_token_bytes()) + 1}),
      states_(TokenTrie::kMaxTokenBytes + 2),
      may_have_left_(TokenTrie::kMaxTokenBytes + 2),
      path_(TokenTrie::kMaxTokenBytes + 1, '\0') {}

Machine::State TokenMasker::NextOfToken(Machine::State state, int32_t token) {
  const absl::string_view bytes = trie_.TokenBytes(token);
  if (bytes.empty()) return Machine::kDead;
  for (size_t i = 0; i < bytes.size() && state != Machine::kDead; ++i)
    state = machine_.Next(state, static_cast<uint8_t>(bytes[i]));
  return state;
}

bool TokenMasker::ReadsSubtree(Machine::State state, uint32_t node) {
  const TokenTrie::Below& below = trie_.below(node);
  return trie_.nodes()[node].end - node >= kLargeSubtree &&
         machine_.ReadsAll(state, below.byte_groups, below.num_characters);
}

// The first walk of a string's inside looks at every node of the tree: nothing here may cost much.
void TokenMasker::WalkTop(Machine::State top, Part* part) {
  const std::vector<TokenTrie::Node>& nodes = trie_.nodes();
  const std::vector<int32_t>& tokens = trie_.tokens();
  // Open tokens count as allowed here, so that neither list holds them.
  seen_.assign(static_cast<size_t>(vocab_size_), 0);
  const auto mark = [&](uint32_t begin, uint32_t end, bool lists) {
    for (uint32_t t = begin; t < end; ++t) {
      if (tokens[t] >= vocab_size_) continue;
      seen_[static_cast<size_t>(tokens[t])] = 1;
      if (lists) part->ids.push_back(tokens[t]);
    }
  };
  states_[0] = top;
  may_have_left_[0] = 0;
  const uint32_t num_nodes = trie_.num_nodes();
  uint32_t i = 1;
  while (i < num_nodes) {
    const TokenTrie::Node& node = nodes[i];
    const size_t depth = node.depth;
    const Machine::State parent = states_[depth - 1];
    const Machine::State state = machine_.Next(parent, node.byte);
    const bool has_left = may_have_left_[depth - 1] != 0 || machine_.leaves(parent);
    if (state != Machine::kDead) {
      if (ReadsSubtree(state, i)) {
        mark(node.token_begin, nodes[node.end].token_begin, /*lists=*/true);
        i = node.end;
        continue;
      }
      states_[depth] = state;
      may_have_left_[depth] = has_left ? 1 : 0;
      path_[depth - 1] = static_cast<char>(node.byte);
      mark(node.token_begin, nodes[i + 1].token_begin, /*lists=*/true);
      ++i;
      continue;
    }
    if (has_left) {
      mark(node.token_begin, nodes[node.end].token_begin, /*lists=*/false);
      AddOpen(i, absl::string_view(path_).substr(0, depth - 1), part);
    }
    i = node.end;
  }
  ListWhatIsLeft(part);
}

void TokenMasker::AddOpen(uint32_t node, absl::string_view path, Part* part) {
  const auto end = static_cast<uint32_t>(part->open_nodes.size());
  // Siblings follow one another.
  const bool is_first = part->open.empty() || absl::string_view(part->paths)
                                                      .substr(part->open.back().path_begin,
                                                              part->open.back().path_size) != path;
  if (is_first) {
    part->open.push_back({.path_begin = static_cast<uint32_t>(part->paths.size()),
                          .path_size = static_cast<uint32_t>(path.size()),
                          .begin = end,
                          .end = end});
    part->paths.append(path.data(), path.size());
  }
  part->open_nodes.push_back(node);
  part->open.back().end = end + 1;
}

void TokenMasker::ListWhatIsLeft(Part* part) const {
  if (part->ids.size() <= static_cast<size_t>(vocab_size_) / 2) return;
  part->lists_allowed = false;
  part->ids.clear();
  for (int32_t id = 0; id < vocab_size_; ++id)
    if (seen_[static_cast<size_t>(id)] == 0) part->ids.push_back(id);
}

const TokenMasker::Part& TokenMasker::PartOf(Machine::State top) {
  std::unique_ptr<Part>& part = parts_[top];
  if (part == nullptr) {
    part = std::make_unique<Part>();
    WalkTop(top, part.get());
    part->ids.shrink_to_fit();
    kept_ids_ += part->ids.size() + part->open_nodes.size();
  }
  return *part;
}

void TokenMasker::WalkOpen(Machine::State parent,
                           uint32_t node,
                           bool lists_allowed,
                           TokenMask* mask) {
  const std::vector<TokenTrie::Node>& nodes = trie_.nodes();
  const std::vector<int32_t>& tokens = trie_.tokens();
  const auto list = [&](uint32_t begin, uint32_t end) {
    for (uint32_t t = begin; t < end; ++t)
      if (tokens[t] < vocab_size_) mask->ids.push_back(tokens[t]);
  };
  const size_t base = nodes[node].depth;
  states_[base - 1] = parent;
  uint32_t i = node;
  while (i < nodes[node].end) {
    const Machine::State state = machine_.Next(states_[nodes[i].depth - 1U], nodes[i].byte);
    if (state != Machine::kDead && ReadsSubtree(state, i)) {
      if (lists_allowed) list(nodes[i].token_begin, nodes[nodes[i].end].token_begin);
      i = nodes[i].end;
    } else if (state != Machine::kDead) {
      states_[nodes[i].depth] = state;
      if (lists_allowed) list(nodes[i].token_begin, nodes[i + 1].token_begin);
      ++i;
    } else {
      if (!lists_allowed) list(nodes[i].token_begin, nodes[nodes[i].end].token_begin);
      i = nodes[i].end;
    }
  }
}

void TokenMasker::Mask(Machine::State state, TokenMask* mask) {
  mask->lists_allowed = true;
  mask->ids.clear();
  mask->gave_up = has_given_up_;
  if (has_given_up_) return;
  machine_.GrantWork(kMaxWork);
  List(state, mask);
  mask->gave_up = has_given_up_ = machine_.TakeBackWork();
  if (!mask->gave_up) return;
  mask->lists_allowed = true;
  mask->ids.clear();
  Forget();
}

void TokenMasker::List(Machine::State state, TokenMask* mask) {
  if (!machine_.goes_on(state)) return;
  const Part& part = PartOf(machine_.Top(state));
  mask->lists_allowed = part.lists_allowed;
  mask->ids.assign(part.ids.begin(), part.ids.end());
  for (const Part::Open& open : part.open) {
    Machine::State at = state;
    for (uint32_t i = 0; i < open.path_size && at != Machine::kDead; ++i)
      at = machine_.Next(at, static_cast<uint8_t>(part.paths[open.path_begin + i]));
    for (uint32_t i = open.begin; i < open.end; ++i)
      WalkOpen(at, part.open_nodes[i], part.lists_allowed, mask);
  }
}

void TokenMasker::Forget() {
  parts_.clear();
  kept_ids_ = 0;
  machine_.Forget();
}

void TokenMasker::Trim() {
  if (machine_.is_full() || kept_ids_ > kMaxKeptIds) Forget();
}

}  // namespace pagoda::engine::guided
