#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/guided/grammar.h"

namespace pagoda::engine::guided {

// A decimal number, exactly: no zeros before `whole` but a single one, none after `fraction`.
struct Decimal {
  bool is_negative = false;  // never for zero
  std::string whole = "0";
  std::string fraction;

  // Of a JSON number.
  static Decimal Parse(absl::string_view text);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};
// Negative, zero, positive: a before, equal to, after b.
int Compare(const Decimal& a, const Decimal& b);

struct NumberRange {
  struct Bound {
    Decimal value = {};
    bool is_open = false;  // the value itself is outside
  };
  std::optional<Bound> low, high;
  bool integers_only = false;

  void AtLeast(const Bound& bound);
  void AtMost(const Bound& bound);
};

// Decimal numbers of the range without exponents: integers of up to 18 digits, or as many as the
// bounds have and one more; fractions of so many digits that there are 15 significant ones at most,
// so that no two of them are the same floating-point number. No path where the range holds none.
StateId AddNumberRange(const NumberRange& range, StateId from, Grammar* grammar);

}  // namespace pagoda::engine::guided
