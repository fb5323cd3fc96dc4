#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/guided/grammar.h"

namespace pagoda::engine::guided {

// A set of Unicode scalar values: sorted, disjoint, inclusive ranges; never a surrogate.
class CodePointSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;

  CodePointSet() = default;
  // In any order; may overlap.
  explicit CodePointSet(std::vector<Range> ranges);
  static CodePointSet All();

  void Add(uint32_t low, uint32_t high);
  CodePointSet Union(const CodePointSet& other) const;
  CodePointSet Complement() const;
  CodePointSet Intersect(const CodePointSet& other) const;
  CodePointSet Minus(const CodePointSet& other) const { return Intersect(other.Complement()); }

  bool empty() const { return ranges_.empty(); }
  bool Contains(uint32_t code_point) const;
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  void Normalize();

  std::vector<Range> ranges_;
};

// One character of the set, in UTF-8.
StateId AddCharacter(const CodePointSet& set, StateId from, Grammar* grammar);
// One character of the set as the inside of a JSON string spells it: escaped where it must be,
// itself elsewhere.
StateId AddJsonCharacter(const CodePointSet& set, StateId from, Grammar* grammar);

}  // namespace pagoda::engine::guided
