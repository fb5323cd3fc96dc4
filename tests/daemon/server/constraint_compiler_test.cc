#include "daemon/server/constraint_compiler.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using engine::guided::ConstraintCache;
using engine::guided::ConstraintSource;
using ::testing::HasSubstr;
using Compiled = ConstraintCompiler::Compiled;

ConstraintSource Regex(std::string pattern) {
  return {.kind = ConstraintSource::Kind::kRegex, .text = std::move(pattern)};
}

// Takes tenths of a second and is refused then; each `i` another.
ConstraintSource Bomb(int i) {
  std::string pattern = absl::StrCat("b{", i + 1, "}");
  for (int j = 0; j < 20'000; ++j) pattern += "a?";
  return Regex(pattern + std::string(20'000, 'a'));
}

// What comes of a Post.
struct Outcome {
  absl::Status Post(ConstraintCompiler& compiler, ConstraintSource source, ConstraintCache* cache) {
    return compiler.Post(
        std::move(source), cache, &cancelled, [this](absl::StatusOr<Compiled> result) {
          compiled = std::move(result);
          done.Notify();
        });
  }
  const absl::StatusOr<Compiled>& Wait() {
    done.WaitForNotification();
    return compiled;
  }

  std::atomic<bool> cancelled{false};
  absl::Notification done;
  absl::StatusOr<Compiled> compiled = absl::UnknownError("not yet");
};

class ConstraintCompilerTest : public ::testing::TestWithParam<absl::Duration> {};

TEST_P(ConstraintCompilerTest, CompilesIntoTheCacheOrSaysWhyNot) {
  ConstraintCache cache;
  ConstraintCompiler compiler({.allowance = GetParam()});
  Outcome first, again, wrong;
  ASSERT_TRUE(first.Post(compiler, Regex("a+"), &cache).ok());
  ASSERT_TRUE(again.Post(compiler, Regex("a+"), &cache).ok());
  ASSERT_TRUE(wrong.Post(compiler, Regex("a**"), &cache).ok());
  ASSERT_TRUE(first.Wait().ok()) << first.compiled.status();
  EXPECT_EQ(*first.compiled, *again.Wait());
  EXPECT_EQ(*first.compiled, *cache.Find(Regex("a+")));
  const auto direct = engine::guided::CompileConstraint(Regex("a+"), {});
  EXPECT_EQ((*first.compiled)->automaton, (*direct)->automaton);
  EXPECT_EQ((*first.compiled)->name, (*direct)->name);
  EXPECT_TRUE(absl::IsInvalidArgument(wrong.Wait().status()));
  EXPECT_THAT(wrong.compiled.status().message(), HasSubstr("quantifier"));
  EXPECT_EQ(*cache.Find(Regex("a**")), nullptr);
}

TEST_P(ConstraintCompilerTest, EndsWhenNobodyWaitsAnyMore) {
  ConstraintCache cache;
  ConstraintCompiler compiler({.allowance = GetParam()});
  Outcome running, waiting, last;
  ASSERT_TRUE(running.Post(compiler, Bomb(0), &cache).ok());
  ASSERT_TRUE(waiting.Post(compiler, Bomb(1), &cache).ok());
  absl::SleepFor(absl::Milliseconds(5));
  running.cancelled = waiting.cancelled = true;
  ASSERT_TRUE(last.Post(compiler, Regex("a"), &cache).ok());
  EXPECT_TRUE(absl::IsCancelled(running.Wait().status())) << running.compiled.status();
  EXPECT_TRUE(absl::IsCancelled(waiting.Wait().status()));
  EXPECT_TRUE(last.Wait().ok());
}

INSTANTIATE_TEST_SUITE_P(Allowances,
                         ConstraintCompilerTest,
                         ::testing::Values(absl::ZeroDuration(), absl::Seconds(10)));

TEST(ConstraintQueueTest, WhatWaitsIsBoundedAndEndsWithIt) {
  ConstraintCache cache;
  std::vector<Outcome> outcomes(6);
  ConstraintCompiler compiler({.max_waiting = 2});
  int num_taken = 0;
  absl::Status refused;
  for (int i = 0; i < 6; ++i) {
    const absl::Status status = outcomes[i].Post(compiler, Bomb(i), &cache);
    num_taken += status.ok() ? 1 : 0;
    if (!status.ok()) refused = status;
  }
  EXPECT_GE(num_taken, 2);
  EXPECT_LE(num_taken, 3);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(refused.message(), HasSubstr("2 requests wait to be compiled"));
  compiler.Stop();
  EXPECT_TRUE(absl::IsUnavailable(outcomes[1].Wait().status()));
  Outcome late;
  EXPECT_TRUE(absl::IsUnavailable(late.Post(compiler, Regex("a"), &cache)));
}

}  // namespace
}  // namespace pagoda::daemon
