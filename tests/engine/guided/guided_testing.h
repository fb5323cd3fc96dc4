#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/guided/automaton.h"
#include "engine/guided/constraint.h"
#include "engine/guided/machine.h"
#include "engine/guided/token_masker.h"
#include "engine/guided/token_trie.h"

namespace pagoda::engine::guided {

absl::StatusOr<Automaton> CompileToAutomaton(ConstraintSource::Kind kind, absl::string_view text);
absl::StatusOr<Automaton> CompileChoices(const std::vector<std::string>& choices);

// Whether the whole text is in the language.
bool Matches(Machine& machine, absl::string_view text);
inline bool Matches(const Automaton& automaton, absl::string_view text) {
  Machine machine(&automaton, {});
  return Matches(machine, text);
}

std::string Repeated(absl::string_view text, int count);

// Every byte, and tokens that span several symbols of JSON or parts of characters. Ids 0 to 2 are
// special ones, without bytes.
struct TestVocabulary {
  TestVocabulary();

  std::vector<std::string> tokens;  // by id
  std::unique_ptr<TokenTrie> trie;
};

// What a model of random weights would write: each token is drawn among those allowed; where the
// text may end, it does with the given chance (and always where nothing may follow). Empty when
// `max_tokens` did not suffice.
struct Drawn {
  std::string text;
  bool is_complete = false;
  bool is_stuck = false;
};
Drawn Draw(TokenMasker& masker,
           const TestVocabulary& vocabulary,
           uint64_t seed,
           int max_tokens,
           double end_chance = 0.5);

}  // namespace pagoda::engine::guided
