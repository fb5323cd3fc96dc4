#include "engine/guided/token_masker.h"

#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engine/guided/guided_testing.h"

namespace pagoda::engine::guided {
namespace {

using Kind = ConstraintSource::Kind;

struct MaskCase {
  const char* name;
  Kind kind;
  const char* text;
};

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class TokenMaskerTest : public testing::TestWithParam<MaskCase> {};

// The mask is, token by token, what reading its bytes says; at every state of many random texts,
// also after everything kept was forgotten.
void ExpectWhatReadingGives(const Automaton& automaton,
                            const TokenTrie& trie,
                            const std::vector<std::string>& tokens) {
  const auto size = static_cast<int32_t>(tokens.size());
  // Two ids of padding above the vocabulary.
  TokenMasker masker(automaton, &trie, size + 2);
  Machine reader(&automaton, {});
  TokenMask mask;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    Machine::State state = masker.machine().start();
    Machine::State read = reader.start();
    for (int step = 0; step < 60 && masker.machine().goes_on(state); ++step) {
      masker.Mask(state, &mask);
      const std::vector<uint32_t> bits = mask.Bits(size + 2);
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < size + 2; ++id) {
        const std::string token = id < size ? tokens[static_cast<size_t>(id)] : "";
        Machine::State after = read;
        for (const char c : token) after = reader.Next(after, static_cast<uint8_t>(c));
        const bool is_allowed = !token.empty() && after != Machine::kDead;
        ASSERT_EQ((bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0, is_allowed)
            << "token " << id << " '" << token << "' at step " << step;
        if (is_allowed) allowed.push_back(id);
      }
      if (allowed.empty()) break;
      const int32_t token = allowed[random() % allowed.size()];
      state = masker.NextOfToken(state, token);
      for (const char c : tokens[static_cast<size_t>(token)])
        read = reader.Next(read, static_cast<uint8_t>(c));
      ASSERT_EQ(masker.machine().accepts(state), reader.accepts(read));
    }
    if (seed % 5 == 4) masker.Forget();
  }
}

TEST_P(TokenMaskerTest, IsWhatReadingEveryTokenGives) {
  const TestVocabulary vocabulary;
  const auto automaton = CompileToAutomaton(GetParam().kind, GetParam().text);
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  ExpectWhatReadingGives(*automaton, *vocabulary.trie, vocabulary.tokens);
}

// Tokens of up to 45 characters that share their beginnings, some of which no text holds and some
// of which end inside a character: whole subtrees are read at once, and counts are rounded.
std::vector<std::string> LongTokens() {
  const std::vector<std::string> characters = {"a",
                                               "b",
                                               "c",
                                               "a",
                                               "b",
                                               " ",
                                               "x",
                                               "0",
                                               "\"",
                                               "\\",
                                               "}",
                                               "\n",
                                               "\u00e9",
                                               "\u65e5",
                                               "\U0001F600"};
  std::mt19937_64 random(5);
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  while (tokens.size() < 1500) {
    std::string token;
    // Few kinds of character make long tokens that go on where others end.
    const size_t num_kinds = random() % 4 == 0 ? characters.size() : 2 + random() % 5;
    for (size_t left = 1 + random() % (random() % 8 == 0 ? 45 : 6); left > 0; --left)
      token += characters[random() % num_kinds];
    if (random() % 10 == 0) token += characters[characters.size() - 1 - random() % 3];
    if (random() % 12 == 0) token.pop_back();
    if (random() % 40 == 0) token += '\xC0';
    if (!token.empty()) tokens.push_back(token);
  }
  return tokens;
}

TEST_P(TokenMaskerTest, IsWhatReadingEveryLongTokenGives) {
  const std::vector<std::string> tokens = LongTokens();
  std::vector<std::pair<absl::string_view, int32_t>> pairs;
  for (size_t i = 0; i < tokens.size(); ++i) pairs.emplace_back(tokens[i], static_cast<int32_t>(i));
  const auto automaton = CompileToAutomaton(GetParam().kind, GetParam().text);
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  ExpectWhatReadingGives(*automaton, TokenTrie(std::move(pairs)), tokens);
}

INSTANTIATE_TEST_SUITE_P(
    Grammars,
    TokenMaskerTest,
    testing::Values(
        MaskCase{"object", Kind::kJsonObject, ""},
        MaskCase{"nested_schema",
                 Kind::kJsonSchema,
                 R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"object",
                 "properties":{"n":{"type":"integer"},"s":{"type":"string","maxLength":3}},
                 "required":["n"]}},"b":{"enum":["a","ab",null]}},"required":["a"]})"},
        MaskCase{"recursive",
                 Kind::kJsonSchema,
                 R"({"type":"array","items":{"$ref":"#"},"maxItems":2})"},
        MaskCase{"counted_string", Kind::kJsonSchema, R"({"type":"string","maxLength":500})"},
        MaskCase{"any_string", Kind::kJsonSchema, R"({"type":"string"})"},
        MaskCase{
            "short_string", Kind::kJsonSchema, R"({"type":"string","minLength":3,"maxLength":40})"},
        MaskCase{"long_string", Kind::kJsonSchema, R"({"type":"string","minLength":20})"},
        MaskCase{"counted_letters", Kind::kRegex, "[a-c ]{17,33}"},
        MaskCase{"counted_words", Kind::kRegex, "((ab|c){18,40}x?){1,20}"},
        MaskCase{"counted_bytes", Kind::kRegex, "(a{5,50}[^b]{20}|b*)0"},
        MaskCase{"counts_in_counts", Kind::kRegex, "((ab{2,90}){3,50}c?){2,70}"},
        MaskCase{"any_text", Kind::kRegex, "[^x]{0,40}(abc|x12)*"},
        MaskCase{"pattern", Kind::kJsonSchema, R"({"type":"string","pattern":"a\\d{1,3}\"$"})"},
        MaskCase{"grammar",
                 Kind::kGrammar,
                 "root ::= expr\nexpr ::= term (\"-\" term)*\nterm ::= [0-9]+ | \"{\" expr \"}\""}),
    [](const testing::TestParamInfo<MaskCase>& info) { return info.param.name; });

TEST(TokenTrieTest, SurvivesSerialisation) {
  const TestVocabulary vocabulary;
  const auto parsed = TokenTrie::Parse(vocabulary.trie->Serialize());
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->tokens(), vocabulary.trie->tokens());
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
    EXPECT_EQ(parsed->TokenBytes(static_cast<int32_t>(id)), vocabulary.tokens[id]);
  std::string bytes = vocabulary.trie->Serialize();
  bytes.pop_back();
  EXPECT_FALSE(TokenTrie::Parse(bytes).ok());
}

TEST(TokenTrieTest, HoldsTokensOfEqualBytes) {
  const TokenTrie trie({{"ab", 3}, {"ab", 1}, {"a", 2}, {"", 0}});
  EXPECT_EQ(trie.tokens(), (std::vector<int32_t>{2, 1, 3}));
  EXPECT_EQ(trie.TokenBytes(1), "ab");
  EXPECT_EQ(trie.TokenBytes(0), "");
  EXPECT_EQ(trie.num_nodes(), 3u);
}

// A grammar that has to remember everything that was read leads elsewhere with every token. Its
// mask is given up, in bounded time and memory, and not tried again.
TEST(TokenMaskerTest, GivesUpWhereEveryTokenLeadsElsewhere) {
  std::string grammar = "root ::= \".\"";
  for (char c = 'a'; c <= 'z'; ++c) grammar += std::string(" | \"") + c + "\" root \"" + c + "\"";
  const auto automaton = CompileToAutomaton(Kind::kGrammar, grammar);
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  std::mt19937_64 random(1);
  std::vector<std::string> tokens;
  std::vector<std::pair<absl::string_view, int32_t>> pairs;
  for (int i = 0; i < 60'000; ++i) {
    tokens.emplace_back();
    for (int j = 0; j < 9; ++j) tokens.back() += static_cast<char>('a' + random() % 26);
  }
  for (const std::string& token : tokens) pairs.emplace_back(token, pairs.size());
  const TokenTrie trie(std::move(pairs));
  TokenMasker masker(*automaton, &trie, static_cast<int32_t>(tokens.size()));
  TokenMask mask;
  for (int i = 0; i < 3; ++i) {
    const double start = ThreadSeconds();
    masker.Mask(masker.machine().start(), &mask);
    // The first time it is tried.
    EXPECT_LT(ThreadSeconds() - start, i == 0 ? 10.0 : 0.1);
    EXPECT_TRUE(mask.gave_up);
    EXPECT_TRUE(mask.lists_allowed);
    EXPECT_TRUE(mask.ids.empty());
    EXPECT_LT(masker.machine().num_states(), 10u);
  }
  // With other tokens the same grammar is no trouble.
  const TestVocabulary vocabulary;
  ExpectWhatReadingGives(*automaton, *vocabulary.trie, vocabulary.tokens);
}

}  // namespace
}  // namespace pagoda::engine::guided
