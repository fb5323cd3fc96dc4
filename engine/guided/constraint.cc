#include "engine/guided/constraint.h"

#include <utility>
#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "engine/guided/automaton.h"
#include "engine/guided/ebnf_parser.h"
#include "engine/guided/expression.h"
#include "engine/guided/grammar.h"
#include "engine/guided/grammar_compiler.h"
#include "engine/guided/json_grammar.h"
#include "engine/guided/regex_parser.h"
#include "engine/guided/schema_compiler.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::guided {
namespace {

// Of sources and compiled forms in a cache.
constexpr size_t kMaxKeptBytes = size_t{64} << 20;

absl::Status AddRegex(absl::string_view pattern, Grammar* grammar) {
  PAGODA_ASSIGN_OR_RETURN(const ExpressionPtr expression,
                          ParseRegex(pattern, RegexUse::kWholeText, grammar->limits()));
  const RuleId root = grammar->AddRule("the expression");
  const StateId end =
      AddExpression(*expression, Spelling::kPlain, grammar->rule(root).start, grammar);
  grammar->AddEmpty(end, grammar->rule(root).end);
  grammar->set_root(root);
  return absl::OkStatus();
}

void AddChoices(const std::vector<std::string>& choices, Grammar* grammar) {
  const RuleId root = grammar->AddRule("the choices");
  for (const std::string& choice : choices) {
    grammar->AddEmpty(grammar->Literal(grammar->rule(root).start, choice), grammar->rule(root).end);
  }
  grammar->set_root(root);
}

absl::Status AddSource(const ConstraintSource& source, Grammar* grammar) {
  switch (source.kind) {
    case ConstraintSource::Kind::kJsonSchema:
      return CompileSchema(source.text, grammar);
    case ConstraintSource::Kind::kJsonObject:
      grammar->set_root(JsonGrammar(grammar).Object());
      return absl::OkStatus();
    case ConstraintSource::Kind::kRegex:
      return AddRegex(source.text, grammar);
    case ConstraintSource::Kind::kGrammar:
      return ParseEbnf(source.text, grammar);
    case ConstraintSource::Kind::kChoice:
      if (source.choices.empty()) return absl::InvalidArgumentError("holds no choice");
      AddChoices(source.choices, grammar);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status CheckSize(const ConstraintSource& source, const Limits& limits) {
  if (source.size_bytes() <= limits.max_source_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("has ", source.size_bytes(), " bytes; the limit is ", limits.max_source_bytes));
}

// A hash of the content, and its length.
std::string NameOf(absl::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16),
                      "-",
                      bytes.size());
}

std::string KeyOf(const ConstraintSource& source) {
  std::string key = absl::StrCat(static_cast<int>(source.kind), "|", source.text);
  for (const std::string& choice : source.choices)
    absl::StrAppend(&key, choice.size(), ":", choice);
  return key;
}

}  // namespace

size_t ConstraintSource::size_bytes() const {
  size_t size = text.size();
  for (const std::string& choice : choices) size += choice.size() + 1;
  return size;
}

absl::StatusOr<std::shared_ptr<const CompiledConstraint>> CompileConstraint(
    const ConstraintSource& source, const Limits& limits) {
  PAGODA_RETURN_IF_ERROR(CheckSize(source, limits));
  Grammar grammar(limits);
  PAGODA_RETURN_IF_ERROR(AddSource(source, &grammar));
  PAGODA_ASSIGN_OR_RETURN(const Automaton automaton, CompileGrammar(grammar));
  const Automaton::State& start =
      automaton
          .states[static_cast<size_t>(automaton.rule_starts[static_cast<size_t>(automaton.root)])];
  if (start.byte_begin == start.byte_end && start.call_begin == start.call_end)
    return absl::InvalidArgumentError("matches the empty text alone");
  auto compiled = std::make_shared<CompiledConstraint>();
  compiled->automaton = automaton.Serialize();
  compiled->name = NameOf(compiled->automaton);
  return compiled;
}

absl::StatusOr<std::shared_ptr<const CompiledConstraint>> ConstraintCache::Get(
    const ConstraintSource& source) {
  PAGODA_ASSIGN_OR_RETURN(std::shared_ptr<const CompiledConstraint> compiled, Find(source));
  if (compiled != nullptr) return compiled;
  PAGODA_ASSIGN_OR_RETURN(compiled, CompileConstraint(source, limits_));
  Add(source, compiled);
  return compiled;
}

absl::StatusOr<std::shared_ptr<const CompiledConstraint>> ConstraintCache::Find(
    const ConstraintSource& source) {
  PAGODA_RETURN_IF_ERROR(CheckSize(source, limits_));
  const std::string key = KeyOf(source);
  MutexLock lock(&mutex_);
  const auto it = kept_.find(key);
  return it == kept_.end() ? nullptr : it->second;
}

void ConstraintCache::Add(const ConstraintSource& source,
                          std::shared_ptr<const CompiledConstraint> compiled) {
  const std::string key = KeyOf(source);
  MutexLock lock(&mutex_);
  if (kept_.try_emplace(key, compiled).second) {
    by_age_.push_back(key);
    kept_bytes_ += 2 * key.size() + compiled->automaton.size();
  }
  while (by_age_.size() > max_kept_ || (kept_bytes_ > kMaxKeptBytes && by_age_.size() > 1)) {
    const auto oldest = kept_.find(by_age_.front());
    kept_bytes_ -= 2 * oldest->first.size() + oldest->second->automaton.size();
    kept_.erase(oldest);
    by_age_.pop_front();
  }
}

}  // namespace pagoda::engine::guided
