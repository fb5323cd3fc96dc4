#pragma once

#include <cstdint>
#include <vector>

#include "engine/ids.h"
#include "engine/text/merge_table.h"

namespace pagoda::engine {

// Applies merges to one word: of all adjacent pairs that merge, the one of lowest rank first, the
// leftmost among equals, until none is left. Thread-compatible.
class BpeMerger {
 public:
  // Replaces *ids by what they merge to. O(n log n) in the number of ids.
  void Run(const MergeTable& merges, std::vector<TokenId>* ids);
  // Gives back the memory of long words.
  void Trim();

 private:
  // A token of the word, in a list that merging takes elements out of.
  struct Symbol {
    TokenId id;
    int32_t previous;  // kNone: none
    int32_t next;
  };
  // A pair that may merge: `left` and its next. Stale when either has merged since, which shows in
  // what they would become: tokens only grow.
  struct Candidate {
    uint32_t rank;
    int32_t left;
    TokenId id;
  };

  void RunShort(const MergeTable& merges, std::vector<TokenId>* ids);
  void RunLong(const MergeTable& merges, std::vector<TokenId>* ids);
  void PushCandidate(const MergeTable& merges, int32_t left);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace pagoda::engine
