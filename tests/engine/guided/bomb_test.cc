// What a request may hold to cost much: that is measured, so that this runs without sanitizers too.
#include <cstdio>
#include <string>
#include <time.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/guided/constraint.h"
#include "tests/engine/guided/guided_testing.h"

namespace pagoda::engine::guided {
namespace {

using Kind = ConstraintSource::Kind;

// Of the processor: neighbours on the machine do not count.
double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// B047: nothing that a request can hold crashes, hangs or takes memory without bound.
TEST(BombTest, B047EndsWithinLimits) {
  const std::string deep_groups = Repeated("(", 50'000) + "a" + Repeated(")", 50'000);
  std::string deep_schema = "true", rules = "root ::= r0\n", references = R"({"$defs":{)";
  for (int i = 0; i < 2000; ++i) deep_schema = absl::StrCat(R"({"items":)", deep_schema, "}");
  for (int i = 0; i < 20'000; ++i) absl::StrAppend(&rules, "r", i, " ::= r", i + 1, " | \"x\"\n");
  for (int i = 0; i < 3000; ++i) {
    absl::StrAppend(&references,
                    i > 0 ? "," : "",
                    "\"d",
                    i,
                    R"(":{"anyOf":[{"$ref":"#/$defs/d)",
                    i + 1,
                    R"("},{"type":"null"}]})");
  }
  absl::StrAppend(&references, R"(},"$ref":"#/$defs/d0"})");
  std::string product = R"({"allOf":[)";
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&product,
                    i > 0 ? "," : "",
                    R"({"anyOf":[{"required":["a)",
                    i,
                    R"("]},{"required":["b)",
                    i,
                    R"("]}]})");
  }
  absl::StrAppend(&product, "]}");
  std::string wide = R"({"type":"object","additionalProperties":true,"properties":{)";
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&wide, i > 0 ? "," : "", "\"key", i, "\":{}");
  absl::StrAppend(&wide, "}}");
  const std::vector<std::pair<Kind, std::string>> bombs = {
      {Kind::kRegex, deep_groups},
      {Kind::kRegex, Repeated("[", 50'000)},
      {Kind::kRegex, Repeated("(a|", 60) + Repeated(")*", 60)},
      {Kind::kRegex, "(a|b)*a" + Repeated("(a|b)", 60)},
      {Kind::kRegex, Repeated("a?", 20'000) + Repeated("a", 20'000)},
      {Kind::kRegex, "((((((a{1000}){1000}){1000}){1000}){1000}){1000}){1000}"},
      {Kind::kRegex, Repeated("[^a]", 60'000)},
      {Kind::kRegex, std::string(10'000'000, 'a')},
      {Kind::kGrammar, deep_groups},
      {Kind::kGrammar, rules},
      {Kind::kGrammar, "root ::= " + Repeated("(", 50'000)},
      {Kind::kGrammar, "root ::= " + Repeated("(\"a\"?){9}", 20'000)},
      {Kind::kJsonSchema, deep_schema},
      {Kind::kJsonSchema, Repeated("[", 100'000)},
      {Kind::kJsonSchema, Repeated("{\"a\":", 100'000)},
      {Kind::kJsonSchema, references},
      {Kind::kJsonSchema, product},
      {Kind::kJsonSchema, wide},
      {Kind::kJsonSchema, R"({"$ref":"#"})"},
      {Kind::kJsonSchema, R"({"oneOf":[{"$ref":"#"},{"$ref":"#"}]})"},
      {Kind::kJsonSchema, R"({"type":"integer","minimum":1e308,"maximum":-1e308})"},
      {Kind::kJsonSchema, R"({"type":"string","minLength":18446744073709551615})"},
      {Kind::kJsonSchema, R"({"type":"string","maxLength":99999999999999999999999})"},
      {Kind::kJsonSchema, R"({"type":"array","minItems":1e300})"},
      {Kind::kJsonSchema, "\xFF\xFE"},
      {Kind::kJsonSchema, ""},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"(((a{999}){999}){999}b?)*c"})"}};
#ifdef PAGODA_SANITIZED
  constexpr double kMaxSeconds = 30.0;  // instrumented code is that much slower
#else
  constexpr double kMaxSeconds = 1.0;
#endif
  for (size_t i = 0; i < bombs.size(); ++i) {
    const double start = ThreadSeconds();
    const auto compiled =
        CompileConstraint({.kind = bombs[i].first, .text = bombs[i].second}, Limits());
    const double elapsed = ThreadSeconds() - start;
    EXPECT_TRUE(compiled.ok() || absl::IsInvalidArgument(compiled.status())) << i;
    EXPECT_LT(elapsed, kMaxSeconds) << i;
    RecordProperty(absl::StrCat("bomb_", i, "_ms"), static_cast<int>(elapsed * 1000));
    std::printf("bomb %zu: %.1f ms, %s\n",
                i,
                elapsed * 1e3,
                compiled.ok() ? "taken" : std::string(compiled.status().message()).c_str());
    if (!compiled.ok()) continue;
    // Those that are taken can be read with.
    const auto automaton = Automaton::Parse((*compiled)->automaton);
    ASSERT_TRUE(automaton.ok());
    const TestVocabulary vocabulary;
    TokenMasker masker(
        *automaton, vocabulary.trie.get(), static_cast<int32_t>(vocabulary.tokens.size()));
    Draw(masker, vocabulary, i, 50);
  }
}

// A grammar with so many ways to read one text that they cannot all be kept is cut off, not
// followed.
TEST(BombTest, TooManyWaysToReadOverflow) {
  const auto automaton = CompileToAutomaton(Kind::kGrammar,
                                            "root ::= a\na ::= \"x\" a b | \"x\" a c | \"x\"\nb "
                                            "::= \"y\" b | \"y\"\nc ::= \"y\" c \"y\" | \"y\"");
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  Machine machine(&*automaton, {.max_members = 100});
  const std::string text = Repeated("x", 40) + Repeated("y", 200);
  Matches(machine, text);
  EXPECT_TRUE(machine.overflowed());
}

}  // namespace
}  // namespace pagoda::engine::guided
