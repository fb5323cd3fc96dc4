#include "engine/stop_checker.h"

#include <gtest/gtest.h>

#include "tests/fakes/fake_tokenizer.h"

namespace pagoda::engine {
namespace {

struct Ran {
  std::string text;
  std::vector<std::string> pieces;
  int num_tokens = 0;
  absl::optional<StopMatch> match;
};

// Runs one token per piece of text through a checker until it ends.
Ran Feed(const std::vector<std::string>& pieces, StopParams params, int32_t max_tokens = 1000) {
  const FakeTokenizer tokenizer(pieces);
  const StopRules rules(params, max_tokens);
  StopChecker checker(&rules, &tokenizer, true);
  Ran outcome;
  for (size_t i = 0; i < pieces.size() && !outcome.match.has_value(); ++i) {
    std::string text;
    outcome.match = checker.Accept(static_cast<TokenId>(i), ++outcome.num_tokens, &text);
    outcome.text += text;
    outcome.pieces.push_back(text);
  }
  return outcome;
}

std::string MatchedString(const Ran& outcome) {
  return std::get<std::string>(outcome.match->matched_stop);
}

TEST(StopCheckerTest, B003_NoByteOfAStopStringOfSeveralTokensIsShown) {
  const Ran outcome = Feed({"x", "kla", "uto", "rn", "ow", "y"}, {.stop_strings = {"klautornow"}});
  EXPECT_EQ(outcome.text, "x");
  EXPECT_EQ(outcome.num_tokens, 5);
  EXPECT_EQ(outcome.match->reason, FinishReason::kStopSequence);
  EXPECT_EQ(MatchedString(outcome), "klautornow");
  // A token that breaks the match sets everything free.
  const Ran broken = Feed({"kla", "uto", "rn", "!"}, {.stop_strings = {"klautornow"}}, 4);
  EXPECT_EQ(broken.pieces, (std::vector<std::string>{"", "", "", "klautorn!"}));
  EXPECT_EQ(broken.match->reason, FinishReason::kLength);
}

TEST(StopCheckerTest, B004_AMatchMayLieInsideAToken) {
  const Ran outcome = Feed({"x", "ab.c", "y"}, {.stop_strings = {"b."}});
  EXPECT_EQ(outcome.text, "xa");
  EXPECT_EQ(outcome.num_tokens, 2);
}

TEST(StopCheckerTest, B006_AStopIdDoesNotShortenTheText) {
  const Ran outcome =
      Feed({"hello", "<stop>"}, {.stop_strings = {"abc", "lox"}, .stop_token_ids = {1}});
  EXPECT_EQ(outcome.text, "hello");
  EXPECT_EQ(std::get<TokenId>(outcome.match->matched_stop), 1);
  EXPECT_EQ(outcome.match->reason, FinishReason::kStopSequence);
}

TEST(StopCheckerTest, B008_IncludeStopEndsTheTextAfterTheMatch) {
  const Ran outcome = Feed({"x", "ab.c", "y"}, {.stop_strings = {"b."}, .include_stop = true});
  EXPECT_EQ(outcome.text, "xab.");
}

TEST(StopCheckerTest, B010_OnlyAProperPrefixIsHeldBack) {
  const Ran outcome = Feed({"one ", "two Q", "three ", "four"}, {.stop_strings = {"QQQQQQQQQQ"}});
  EXPECT_EQ(outcome.pieces, (std::vector<std::string>{"one ", "two ", "Qthree ", "four"}));
}

TEST(StopCheckerTest, TheMatchThatEndsFirstWinsThenTheLongest) {
  Ran outcome = Feed({"ab.cd"}, {.stop_strings = {".cd", "b."}});
  EXPECT_EQ(outcome.text, "a");
  EXPECT_EQ(MatchedString(outcome), "b.");
  outcome = Feed({"xabc"}, {.stop_strings = {"bc", "abc", "c"}});
  EXPECT_EQ(outcome.text, "x");
  EXPECT_EQ(MatchedString(outcome), "abc");
  // "abcd" was still possible when "bc" came to its end.
  outcome = Feed({"a", "b", "c", "d"}, {.stop_strings = {"abcd", "bc"}});
  EXPECT_EQ(outcome.text, "a");
  EXPECT_EQ(outcome.num_tokens, 3);
}

TEST(StopCheckerTest, APrefixThatOverlapsItselfIsFound) {
  const Ran outcome = Feed({"a", "a", "b", "a", "a", "b", "c"}, {.stop_strings = {"aabc"}});
  EXPECT_EQ(outcome.text, "aab");
}

TEST(StopCheckerTest, B014_NothingEndsWithinMinTokens) {
  StopParams params = {.min_tokens = 2, .stop_token_ids = {1}, .eos_token_ids = {0, 2}};
  Ran outcome = Feed({"a", "b", "c"}, params);
  EXPECT_EQ(outcome.num_tokens, 3);
  EXPECT_EQ(outcome.text, "ab");
  // Their text takes no part in matches either.
  outcome = Feed({"st", "op", "stop", "!"}, {.min_tokens = 2, .stop_strings = {"stop"}});
  EXPECT_EQ(outcome.pieces, (std::vector<std::string>{"st", "op", ""}));
  outcome = Feed({"st", "op"}, {.min_tokens = 1, .stop_strings = {"stop"}});
  EXPECT_FALSE(outcome.match.has_value());
}

TEST(StopCheckerTest, EosIsCountedNotShownAndMayBeIgnored) {
  StopParams params = {.eos_token_ids = {2, 1}};
  Ran outcome = Feed({"a", "<eos>", "b"}, params);
  EXPECT_EQ(outcome.text, "a");
  EXPECT_EQ(outcome.num_tokens, 2);
  EXPECT_EQ(outcome.match->reason, FinishReason::kStop);
  EXPECT_EQ(outcome.match->matched_stop.index(), 0u);
  params.ignore_eos = true;
  params.stop_token_ids = {2};
  outcome = Feed({"a", "<eos>", "b"}, params);
  EXPECT_EQ(outcome.text, "a<eos>");
  EXPECT_EQ(outcome.match->reason, FinishReason::kStopSequence);
}

TEST(StopCheckerTest, LengthShowsWhatWasHeldAndReplacesWhatIsUnfinished) {
  Ran outcome = Feed({"a", "st"}, {.stop_strings = {"stop"}}, 2);
  EXPECT_EQ(outcome.text, "ast");
  outcome = Feed({"a", "\xF0\x9F\x98"}, {}, 2);
  EXPECT_EQ(outcome.text, "a\xEF\xBF\xBD");
  EXPECT_EQ(outcome.match->reason, FinishReason::kLength);
}

// The same text cut into tokens in every possible way ends at the same byte with the same text.
TEST(StopCheckerTest, ResultsDoNotDependOnWhereTokensBegin) {
  const std::string text = "xaab.aabcaabz";
  const std::vector<StopParams> all = {{.stop_strings = {"aabc", "b.a"}},
                                       {.stop_strings = {"bca", "aabz", "cc"}},
                                       {.stop_strings = {"c", "aabca"}, .include_stop = true}};
  for (const StopParams& params : all) {
    const Ran whole = Feed({text}, params);
    for (uint32_t cuts = 0; cuts < (1u << (text.size() - 1)); ++cuts) {
      std::vector<std::string> pieces(1);
      for (size_t i = 0; i < text.size(); ++i) {
        pieces.back() += text[i];
        if (i + 1 < text.size() && (cuts >> i & 1) != 0) pieces.emplace_back();
      }
      const Ran outcome = Feed(pieces, params);
      ASSERT_EQ(outcome.text, whole.text) << cuts;
      ASSERT_EQ(MatchedString(outcome), MatchedString(whole)) << cuts;
    }
  }
}

TEST(StopCheckerTest, WorksWithoutATokenizer) {
  const StopRules rules({.eos_token_ids = {3}}, 10);
  StopChecker checker(&rules, nullptr, true);
  std::string text;
  EXPECT_FALSE(checker.Accept(1, 1, &text).has_value());
  EXPECT_TRUE(checker.Accept(3, 2, &text).has_value());
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace pagoda::engine
