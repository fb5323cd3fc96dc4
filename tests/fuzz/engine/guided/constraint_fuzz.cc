#include "tests/fuzz/engine/guided/constraint_fuzz.h"

#include <string>

#include "engine/guided/token_masker.h"
#include "engine/guided/token_trie.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::fuzz {
namespace {

using engine::guided::Automaton;
using engine::guided::Machine;
using engine::guided::TokenMask;
using engine::guided::TokenMasker;
using engine::guided::TokenTrie;

struct Vocabulary {
  Vocabulary() : tokens(256) {
    for (size_t byte = 0; byte < 256; ++byte)
      tokens[byte] = std::string(1, static_cast<char>(byte));
    for (const char* token : {"{\"", "\":", "\",\"", "\"}", "}}", "]]", "ab", "12", "true", "  "})
      tokens.emplace_back(token);
    std::vector<std::pair<absl::string_view, int32_t>> pairs;
    for (size_t i = 0; i < tokens.size(); ++i)
      pairs.emplace_back(tokens[i], static_cast<int32_t>(i));
    trie = std::make_unique<TokenTrie>(std::move(pairs));
  }
  std::vector<std::string> tokens;
  std::unique_ptr<TokenTrie> trie;
};

}  // namespace

void RunConstraint(engine::guided::ConstraintSource::Kind kind, const uint8_t* data, size_t size) {
  static const Vocabulary* const vocabulary = new Vocabulary();
  engine::guided::Limits limits;
  limits.max_states = 20'000;
  limits.max_subset_members = 400'000;
  const auto compiled = CompileConstraint(
      {.kind = kind, .text = {reinterpret_cast<const char*>(data), size}}, limits);
  if (!compiled.ok()) {
    Require(absl::IsInvalidArgument(compiled.status()), "unexpected code");
    Require(compiled.status().message().size() < 1024, "endless message");
    return;
  }
  auto automaton = Automaton::Parse((*compiled)->automaton);
  Require(automaton.ok(), "its own bytes are refused");
  const auto num_tokens = static_cast<int32_t>(vocabulary->tokens.size());
  TokenMasker masker(*std::move(automaton), vocabulary->trie.get(), num_tokens);
  Machine& machine = masker.machine();
  Machine::State state = machine.start();
  TokenMask mask;
  uint32_t choice = static_cast<uint32_t>(size);
  for (int step = 0; step < 24 && machine.goes_on(state); ++step) {
    masker.Mask(state, &mask);
    if (mask.gave_up) return;
    const std::vector<uint32_t> bits = mask.Bits(num_tokens);
    int32_t chosen = -1;
    for (int32_t i = 0; i < num_tokens; ++i) {
      choice = choice * 1664525 + 1013904223;
      const bool is_allowed = (bits[static_cast<size_t>(i) / 32] >> (i % 32) & 1) != 0;
      const bool is_read = masker.NextOfToken(state, i) != Machine::kDead;
      Require(is_allowed == is_read || machine.overflowed(), "mask and reading differ");
      if (is_allowed && (chosen < 0 || choice % 4 == 0)) chosen = i;
    }
    if (machine.overflowed()) return;
    Require(chosen >= 0, "a text that goes on with no byte");
    state = masker.NextOfToken(state, chosen);
  }
}

}  // namespace pagoda::fuzz
