#include "engine/guided/constraint.h"

#include <regex>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/engine/guided/guided_testing.h"

namespace pagoda::engine::guided {
namespace {

using Kind = ConstraintSource::Kind;

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
