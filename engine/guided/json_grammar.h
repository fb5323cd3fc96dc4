#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/guided/grammar.h"

namespace pagoda::engine::guided {

// The parts of JSON as rules and states. What is written is a part of what JSON allows, so that no
// text goes on for ever: between tokens at most a blank, or a line's end with an indent; numbers of
// at most 18 digits, 15 of which are significant in fractions, and exponents of two digits; no lone
// surrogates. Thread-compatible.
class JsonGrammar {
 public:
  // `grammar` outlives this.
  explicit JsonGrammar(Grammar* grammar) : grammar_(grammar) {}

  // ---- Rules, made at their first use.
  RuleId Value();
  RuleId Object();
  RuleId Array();
  RuleId String();
  RuleId Number();
  RuleId Integer();
  // One character of a string.
  RuleId Character();

  // ---- By cursor.
  // Blank space or none.
  StateId Space(StateId from);
  // `open` and the space after it; the space before `close` and it.
  StateId Open(StateId from, char open);
  StateId Close(StateId from, char close);
  StateId Comma(StateId from);
  // A property's name as JSON text, and what comes before its value.
  StateId Key(StateId from, absl::string_view quoted);
  // The same for any name but those given (as plain text, not quoted).
  StateId KeyBeside(StateId from, const std::vector<std::string>& names);

 private:
  // Calls `build` for a rule's states at its first use.
  template <typename Build>
  RuleId Once(std::optional<RuleId>* rule, absl::string_view name, Build build);
  StateId AddCharacter(StateId from);
  StateId Digits(StateId from, int min, int max);
  StateId WholePart(StateId from, int max_digits);

  Grammar* const grammar_;
  std::optional<RuleId> value_, object_, array_, string_, number_, integer_, character_, space_;
};

}  // namespace pagoda::engine::guided
