#include "engine/guided/constraint.h"

#include <regex>
#include <time.h>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/engine/guided/guided_testing.h"

namespace pagoda::engine::guided {
namespace {

using Kind = ConstraintSource::Kind;

std::string Repeated(absl::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out.append(text.data(), text.size());
  return out;
}

// ---- Regular expressions against another engine, on every short text.

class RegexAgreementTest : public testing::TestWithParam<const char*> {};

TEST_P(RegexAgreementTest, MatchesWhatTheStandardLibraryMatches) {
  const auto automaton = CompileToAutomaton(Kind::kRegex, GetParam());
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  const std::regex reference(GetParam(), std::regex::ECMAScript);
  Machine machine(&*automaton, {});
  constexpr absl::string_view kAlphabet = "ab0-_ \n";
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(Matches(machine, texts[i]), std::regex_match(texts[i], reference))
        << "'" << texts[i] << "'";
    if (texts[i].size() < 5)
      for (const char c : kAlphabet) texts.push_back(texts[i] + c);
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns,
                         RegexAgreementTest,
                         testing::Values("a",
                                         "a*b",
                                         "(a|b)*",
                                         "(?:ab|a)(?:ba|b)?",
                                         "a{2}",
                                         "a{2,}b?",
                                         "(a{1,2}b){0,2}",
                                         "[ab]+0",
                                         "[^ab]{1,3}",
                                         "\\d+",
                                         "\\D\\w\\W?",
                                         "\\s*\\S",
                                         "a.b",
                                         ".*",
                                         "[a\\-]*_",
                                         "[-a]b|",
                                         "(a*)*b",
                                         "(a*){2,3}",
                                         "(a|a*b?){2,4}",
                                         "((a|b){2}){1,2}",
                                         "a??b+?",
                                         "[\\d_]{2}",
                                         "()|a",
                                         "(a|)(b|)(a|)"));

TEST(RegexTest, CountsExactly) {
  const auto automaton = CompileToAutomaton(Kind::kRegex, "(a{3,1000}b){2,500}");
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  const std::string least = Repeated("a", 3) + "b", most = Repeated("a", 1000) + "b";
  EXPECT_FALSE(Matches(*automaton, least));
  EXPECT_TRUE(Matches(*automaton, least + most));
  EXPECT_FALSE(Matches(*automaton, least + "a" + most));
  EXPECT_FALSE(Matches(*automaton, least + "aab"));
  EXPECT_TRUE(Matches(*automaton, Repeated(least, 500)));
  EXPECT_FALSE(Matches(*automaton, Repeated(least, 501)));
}

TEST(RegexTest, ReadsCharactersNotBytes) {
  const auto automaton = CompileToAutomaton(Kind::kRegex, "[α-ω€😀]{2}.");
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  EXPECT_TRUE(Matches(*automaton, "λ😀x"));
  EXPECT_TRUE(Matches(*automaton, "€€é"));
  EXPECT_FALSE(Matches(*automaton, "Αλx"));
  EXPECT_FALSE(Matches(*automaton, "λ😀\xC3"));
  EXPECT_FALSE(Matches(*automaton, "λ😀\xED\xA0\x80"));
  EXPECT_FALSE(Matches(*automaton, "λ😀\xC0\x80"));
  EXPECT_FALSE(Matches(*automaton, "λ😀\n"));
}

TEST(RegexTest, SaysWhatItCannotAndWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"a**", "at byte 2"},    {"(", "at byte 0"},        {")", "at byte 0"},
      {"*a", "at byte 0"},     {"a{3,2}", "at byte 1"},   {"[b-a]", "at byte 1"},
      {"[", "at byte 0"},      {"(?=a)", "look-around"},  {"(?<!a)b", "look-around"},
      {"(a)\\1", "at byte 3"}, {"\\bword", "escape"},     {"\\p{L}", "escape"},
      {"(^a)", "anchors"},     {"a$b", "at the end"},     {"[[:alpha:]]", "named classes"},
      {"a{9999999}", "limit"}, {"\xFF", "UTF-8"},         {"\\ud800", "names no character"},
      {"a++", "quantifier"},   {"a{2}{3}", "quantifier"}, {"", "empty text"}};
  for (const auto& [pattern, message] : cases) {
    const auto automaton = CompileToAutomaton(Kind::kRegex, pattern);
    EXPECT_TRUE(absl::IsInvalidArgument(automaton.status())) << pattern;
    EXPECT_TRUE(absl::StrContains(automaton.status().message(), message))
        << pattern << ": " << automaton.status();
  }
}

// ---- Grammars and choices.

TEST(GrammarTest, CallsRulesInsideRules) {
  const auto automaton = CompileToAutomaton(Kind::kGrammar, R"G(
      # balanced brackets, counted things, and a list that ends with a dot
      root   ::= (pair | word ("," word){1,2}) "."
      pair   ::= "(" pair? ")" | '[' pair? ']'
      word   ::= [a-c]+ "\n"?
  )G");
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  for (const char* text : {"().", "([()]).", "a,b.", "a\n,bc,c."})
    EXPECT_TRUE(Matches(*automaton, text)) << text;
  for (const char* text : {"", ".", "(.", "([)].", "a.", "a,b,c,a.", "a\n\n,b.", "()"})
    EXPECT_FALSE(Matches(*automaton, text)) << text;
}

TEST(GrammarTest, ReachesDeepNesting) {
  const auto automaton = CompileToAutomaton(Kind::kGrammar, "root ::= \"(\" root? \")\"");
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  EXPECT_TRUE(Matches(*automaton, Repeated("(", 3000) + Repeated(")", 3000)));
  EXPECT_FALSE(Matches(*automaton, Repeated("(", 3000) + Repeated(")", 2999)));
}

TEST(GrammarTest, SaysWhatItCannot) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "root"},
      {"a ::= \"x\"", "root"},
      {"root ::= b", "rule b is not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
      {"root ::= root \"a\" | \"b\"", "calls itself before"},
      {"root ::= x root | \"b\"\nx ::= \"a\"?", "calls itself before"},
      {"root ::= root", "no text matches"},
      {"root ::= \"a", "no end"},
      {"root ::= (\"a\"", "missing )"},
      {"root ::= \"a\")", "unmatched )"},
      {"root = \"a\"", "expected a rule"},
      {"root ::= \"a\"**", "quantifier"},
      {"root ::= [b-a]", "ends before"},
      {"root ::= \"\"", "empty text"}};
  for (const auto& [grammar, message] : cases) {
    const auto automaton = CompileToAutomaton(Kind::kGrammar, grammar);
    EXPECT_TRUE(absl::IsInvalidArgument(automaton.status())) << grammar;
    EXPECT_TRUE(absl::StrContains(automaton.status().message(), message))
        << grammar << ": " << automaton.status();
  }
}

TEST(ChoiceTest, IsOneOfTheTexts) {
  const auto automaton = CompileChoices({"yes", "yes!", "no", "é"});
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  for (const char* text : {"yes", "yes!", "no", "é"}) EXPECT_TRUE(Matches(*automaton, text));
  for (const char* text : {"", "ye", "yes!!", "n", "é\xC3"})
    EXPECT_FALSE(Matches(*automaton, text));
  EXPECT_TRUE(absl::IsInvalidArgument(CompileChoices({}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(CompileChoices({""}).status()));
}

// ---- Bombs.

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

TEST(ConstraintCacheTest, KeepsWhatWasCompiledAndNamesItByContent) {
  ConstraintCache cache(2);
  const ConstraintSource a = {.kind = Kind::kRegex, .text = "a+"};
  const auto first = cache.Get(a), again = cache.Get(a);
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(first->get(), again->get());
  const auto other = cache.Get({.kind = Kind::kGrammar, .text = "root ::= \"a\"+"});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ((*other)->automaton == (*first)->automaton, (*other)->name == (*first)->name);
  ASSERT_TRUE(cache.Get({.kind = Kind::kRegex, .text = "b+"}).ok());
  ASSERT_TRUE(cache.Get({.kind = Kind::kRegex, .text = "c+"}).ok());
  const auto anew = cache.Get(a);
  ASSERT_TRUE(anew.ok());
  EXPECT_NE(anew->get(), first->get());
  EXPECT_EQ((*anew)->name, (*first)->name);
}

TEST(AutomatonTest, RefusesBytesThatAreNone) {
  const auto automaton = CompileToAutomaton(Kind::kRegex, "a(b|c)+");
  ASSERT_TRUE(automaton.ok());
  std::string bytes = automaton->Serialize();
  ASSERT_TRUE(Automaton::Parse(bytes).ok());
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string bad = bytes;
    bad[i] = static_cast<char>(~bad[i]);
    Automaton::Parse(bad).status().IgnoreError();  // sound or refused; the sanitizers look on
    EXPECT_FALSE(Automaton::Parse(bytes.substr(0, i)).ok());
  }
}

}  // namespace
}  // namespace pagoda::engine::guided
