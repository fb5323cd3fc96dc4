#include "engine/guided/token_masker.h"

#include <algorithm>
#include <random>

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

class TokenMaskerTest : public testing::TestWithParam<MaskCase> {};

// The mask is, token by token, what reading its bytes says; at every state of many random texts,
// also after everything kept was forgotten.
TEST_P(TokenMaskerTest, IsWhatReadingEveryTokenGives) {
  const TestVocabulary vocabulary;
  const auto automaton = CompileToAutomaton(GetParam().kind, GetParam().text);
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  const auto size = static_cast<int32_t>(vocabulary.tokens.size());
  // Two ids of padding above the vocabulary.
  TokenMasker masker(*automaton, vocabulary.trie.get(), size + 2);
  Machine reader(&*automaton, {});
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
        const std::string token = id < size ? vocabulary.tokens[static_cast<size_t>(id)] : "";
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
      for (const char c : vocabulary.tokens[static_cast<size_t>(token)])
        read = reader.Next(read, static_cast<uint8_t>(c));
      ASSERT_EQ(masker.machine().accepts(state), reader.accepts(read));
    }
    if (seed % 5 == 4) masker.Forget();
  }
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

}  // namespace
}  // namespace pagoda::engine::guided
