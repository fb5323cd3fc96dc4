#include "engine/text/byte_trie.h"

#include <algorithm>

namespace pagoda::engine {

ByteTrie::ByteTrie(std::vector<std::pair<absl::string_view, TokenId>> spellings) {
  std::sort(spellings.begin(), spellings.end());
  // Spellings that share the path to a node, by node: what is not yet laid out.
  struct Range {
    size_t begin, end;
    size_t depth;
  };
  std::vector<Range> level = {{0, spellings.size(), 0}};
  labels_.push_back(0);
  // Nodes are numbered as they are appended; those of one level are appended by the level above.
  while (!level.empty()) {
    std::vector<Range> next;
    for (const Range& range : level) {
      first_child_.push_back(static_cast<uint32_t>(labels_.size()));
      size_t i = range.begin;
      const bool ends_here = i < range.end && spellings[i].first.size() == range.depth;
      tokens_.push_back(ends_here ? spellings[i++].second : kNoToken);
      while (i < range.end) {
        const char label = spellings[i].first[range.depth];
        const size_t begin = i;
        while (i < range.end && spellings[i].first[range.depth] == label) ++i;
        labels_.push_back(static_cast<uint8_t>(label));
        next.push_back({begin, i, range.depth + 1});
      }
    }
    level = std::move(next);
  }
  first_child_.push_back(static_cast<uint32_t>(labels_.size()));
}

}  // namespace pagoda::engine
