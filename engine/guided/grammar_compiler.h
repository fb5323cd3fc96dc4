#pragma once

#include "absl/status/statusor.h"
#include "engine/guided/automaton.h"
#include "engine/guided/grammar.h"

namespace pagoda::engine::guided {

// Takes out empty edges, rules and states that lead nowhere, and choices between equal beginnings
// within a rule. INVALID_ARGUMENT for a grammar that no text matches, for one with a rule that
// calls itself before it reads anything, and for one beyond its limits.
absl::StatusOr<Automaton> CompileGrammar(const Grammar& grammar);

}  // namespace pagoda::engine::guided
