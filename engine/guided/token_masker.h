#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/guided/automaton.h"
#include "engine/guided/machine.h"
#include "engine/guided/token_trie.h"

namespace pagoda::engine::guided {

// Which tokens may come next: those listed, or all but those listed, whichever list was known to be
// short. Ids are distinct, in no order, and below the vocabulary's size.
struct TokenMask {
  bool lists_allowed = true;
  std::vector<int32_t> ids;
  // Too much work was needed: there are no ids, and every state is invalid.
  bool gave_up = false;

  // One bit an id, in words of 32, from the lowest.
  std::vector<uint32_t> Bits(int32_t vocab_size) const;
};

// Computes the masks of one grammar over one vocabulary.
//
// Most of a mask depends on the top of the stack alone (Machine::Top). That part is computed once
// by a walk of the token tree and kept: tokens that are certain, and the places in the tree where a
// token leaves the top. From there on only the few ways that the whole stack allows are walked, for
// each mask. Thread-compatible.
class TokenMasker {
 public:
  // `trie` outlives this. Ids from the trie's to `vocab_size` are never allowed.
  TokenMasker(Automaton automaton, const TokenTrie* trie, int32_t vocab_size);

  Machine& machine() { return machine_; }
  const Machine& machine() const { return machine_; }
  // The state after a token from `state`; kDead for one that the tree does not hold.
  Machine::State NextOfToken(Machine::State state, int32_t token);
  // The tokens that keep the text a beginning of some text of the language. Takes some tenths of a
  // second at most: a grammar of which every token leads elsewhere is given up, once and for all.
  // REQUIRES: `state` is of the machine's generation.
  void Mask(Machine::State state, TokenMask* mask);
  // Forgets what is kept, or does so if it is much: states are invalid then (Machine::generation
  // changes).
  void Forget();
  void Trim();

 private:
  struct Part {
    bool lists_allowed = true;
    // Allowed for certain, or certain not to be allowed and special or unknown tokens.
    std::vector<int32_t> ids;
    // Subtrees below which a token may have left the top: nodes[begin, end) of `open_nodes`, all
    // children of the place that `path` leads to.
    struct Open {
      uint32_t path_begin = 0, path_size = 0;
      uint32_t begin = 0, end = 0;
    };
    std::string paths;
    std::vector<Open> open;
    std::vector<uint32_t> open_nodes;
  };

  const Part& PartOf(Machine::State top);
  void WalkTop(Machine::State top, Part* part);
  void ListWhatIsLeft(Part* part) const;
  // All of a subtree that is worth the question can be read from `state`, where its node leads.
  bool ReadsSubtree(Machine::State state, uint32_t node);
  void List(Machine::State state, TokenMask* mask);
  // A place in the tree below which tokens are open.
  static void AddOpen(uint32_t node, absl::string_view path, Part* part);
  // Appends tokens of the subtree at `node` that are allowed, or those that are not.
  void WalkOpen(Machine::State parent, uint32_t node, bool lists_allowed, TokenMask* mask);

  const Automaton automaton_;
  const TokenTrie& trie_;
  const int32_t vocab_size_;
  Machine machine_;
  absl::flat_hash_map<Machine::State, std::unique_ptr<Part>> parts_;
  size_t kept_ids_ = 0;
  bool has_given_up_ = false;
  std::vector<Machine::State> states_;  // by depth, of a walk
  std::vector<uint8_t> may_have_left_;
  std::string path_;           // bytes of the walk, by depth
  std::vector<uint8_t> seen_;  // by token: allowed for certain, or open
};

}  // namespace pagoda::engine::guided
