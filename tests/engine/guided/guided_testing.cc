#include "tests/engine/guided/guided_testing.h"

#include <random>
#include <utility>

#include "kernels/base/status_macros.h"

namespace pagoda::engine::guided {
namespace {

absl::StatusOr<Automaton> Compile(const ConstraintSource& source) {
  PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<const CompiledConstraint> compiled,
                          CompileConstraint(source, Limits()));
  return Automaton::Parse(compiled->automaton);
}

}  // namespace

absl::StatusOr<Automaton> CompileToAutomaton(ConstraintSource::Kind kind, absl::string_view text) {
  return Compile({.kind = kind, .text = std::string(text)});
}

absl::StatusOr<Automaton> CompileChoices(const std::vector<std::string>& choices) {
  return Compile({.kind = ConstraintSource::Kind::kChoice, .choices = choices});
}

std::string Repeated(absl::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out.append(text.data(), text.size());
  return out;
}

bool Matches(Machine& machine, absl::string_view text) {
  Machine::State state = machine.start();
  for (const char c : text) {
    state = machine.Next(state, static_cast<uint8_t>(c));
    if (state == Machine::kDead) return false;
  }
  return machine.accepts(state);
}

TestVocabulary::TestVocabulary() {
  tokens.assign(3, "");
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token :
       {"{\"",      "\":",      "\",",  "\"}",  "\"]",    "}}",      "]}",       "}]",       "},",
        "],",       ": ",       ", ",   ", \"", "\": \"", "\", \"",  "\":\"",    "\",\"",    "true",
        "false",    "null",     "12",   "00",   "1.5",    "-1",      "e1",       "abc",      "a",
        " the",     "the",      "name", "\n  ", "\n",     "  ",      "\xC3\xA9", "\xE6\x97", "\xA5",
        "\xF0\x9F", "\x98\x80", "\\u",  "\\n",  "\\\"",   "\"a\"",   "a\":",     "}}}}}",    "]]]]",
        "\"}}",     "0,",       "1}",   "2]",   "[{",     "{\"a\":", "x\"",      "}\n",      "D8",
        "\"\"",     "[]",       "{}",   "[[",   "-",      "xyz"}) {
    tokens.emplace_back(token);
  }
  std::vector<std::pair<absl::string_view, int32_t>> pairs;
  for (size_t i = 0; i < tokens.size(); ++i) pairs.emplace_back(tokens[i], static_cast<int32_t>(i));
  trie = std::make_unique<TokenTrie>(std::move(pairs));
}

Drawn Draw(TokenMasker& masker,
           const TestVocabulary& vocabulary,
           uint64_t seed,
           int max_tokens,
           double end_chance) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> chance(0, 1);
  Machine& machine = masker.machine();
  Machine::State state = machine.start();
  Drawn drawn;
  TokenMask mask;
  for (int i = 0; i < max_tokens; ++i) {
    if (machine.accepts(state) && (!machine.goes_on(state) || chance(random) < end_chance)) {
      drawn.is_complete = true;
      return drawn;
    }
    masker.Mask(state, &mask);
    std::vector<int32_t> allowed;
    const auto size = static_cast<int32_t>(vocabulary.tokens.size());
    const std::vector<uint32_t> bits = mask.Bits(size);
    for (int32_t id = 0; id < size; ++id)
      if ((bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    if (allowed.empty()) {
      drawn.is_stuck = true;
      return drawn;
    }
    const int32_t token = allowed[random() % allowed.size()];
    drawn.text += vocabulary.tokens[static_cast<size_t>(token)];
    state = masker.NextOfToken(state, token);
    if (state == Machine::kDead) {
      drawn.is_stuck = true;
      return drawn;
    }
  }
  drawn.is_complete = machine.accepts(state);
  return drawn;
}

}  // namespace pagoda::engine::guided
