#include "parallel/fault_hook.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/clock.h"
#include "tests/parallel/fake_executor.h"

namespace pagoda::parallel {
namespace {

using internal::v1::StepPlan;
using Kind = FaultHook::Kind;

internal::v1::OpenWorker WorkerOf(uint32_t rank, uint32_t start) {
  internal::v1::OpenWorker open;
  open.set_tensor_rank(rank);
  open.set_start(start);
  return open;
}

std::unique_ptr<StepExecutor> Executor(const std::string& hooks, uint32_t rank, uint32_t start) {
  return WithFaultHooks(std::make_unique<FakeExecutor>(FakeBehaviour()),
                        ParseFaultHooks(hooks).value(),
                        WorkerOf(rank, start));
}

StepPlan Plan(uint64_t step_id) {
  StepPlan plan;
  plan.set_step_id(step_id);
  return plan;
}

TEST(FaultHookTest, Parses) {
  const auto hooks = ParseFaultHooks("abort@40:0:1,hang#17:*:2,delay500@7:3:*");
  ASSERT_TRUE(hooks.ok()) << hooks.status();
  ASSERT_EQ(hooks->size(), 3u);
  EXPECT_EQ((*hooks)[0].kind, Kind::kAbort);
  EXPECT_EQ((*hooks)[0].step_id, 40u);
  EXPECT_EQ((*hooks)[0].token, absl::nullopt);
  EXPECT_EQ((*hooks)[0].rank, 0u);
  EXPECT_EQ((*hooks)[0].start, 1u);
  EXPECT_EQ((*hooks)[1].kind, Kind::kHang);
  EXPECT_EQ((*hooks)[1].token, 17u);
  EXPECT_EQ((*hooks)[1].rank, absl::nullopt);
  EXPECT_EQ((*hooks)[2].delay_ms, 500);
  EXPECT_EQ((*hooks)[2].start, absl::nullopt);
}

TEST(FaultHookTest, NamesWhatItDoesNotUnderstand) {
  for (const char* text : {"",
                           "error",
                           "error@1",
                           "error@1:0",
                           "errors@1:0:1",
                           "error@x:0:1",
                           "error@1:0:1,",
                           "delay@1:0:1",
                           "error@1:?:1",
                           "error@1:0:1:2"}) {
    const absl::Status status = ParseFaultHooks(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("expected")) << text;
  }
}

TEST(FaultHookTest, StrikesAtItsStepOfItsRankAndStart) {
  const auto executor = Executor("error@2:1:3", 1, 3);
  EXPECT_TRUE(executor->Submit(Plan(1)).ok());
  EXPECT_EQ(executor->Submit(Plan(2)), absl::InternalError("fault hook"));
  EXPECT_TRUE(executor->Submit(Plan(3)).ok());
  EXPECT_TRUE(Executor("error@2:1:3", 0, 3)->Submit(Plan(2)).ok());
  EXPECT_TRUE(Executor("error@2:1:3", 1, 4)->Submit(Plan(2)).ok());
  EXPECT_FALSE(Executor("error@2:*:*", 5, 9)->Submit(Plan(2)).ok());
}

TEST(FaultHookTest, StrikesWhereverASequenceWithItsTokenHasARow) {
  const auto executor = Executor("error#7:*:*", 0, 1);
  StepPlan begins = Plan(1);
  auto* sequence = begins.add_new_sequences();
  sequence->set_slot(4);
  sequence->add_token_ids(1);
  sequence->add_token_ids(7);
  begins.add_row_slots(4);
  begins.add_row_num_tokens(1);
  EXPECT_FALSE(executor->Submit(begins).ok());
  StepPlan goes_on = Plan(2);
  goes_on.add_row_slots(4);
  goes_on.add_row_num_tokens(1);
  EXPECT_FALSE(executor->Submit(goes_on).ok());
  StepPlan other = Plan(3);
  other.add_row_slots(3);
  other.add_row_num_tokens(1);
  EXPECT_TRUE(executor->Submit(other).ok());
  StepPlan follows = Plan(4);
  follows.add_released_slots(4);
  follows.add_new_sequences()->set_slot(4);
  follows.add_row_slots(4);
  follows.add_row_num_tokens(1);
  EXPECT_TRUE(executor->Submit(follows).ok());
}

TEST(FaultHookTest, Delays) {
  const auto executor = Executor("delay20@1:*:*", 0, 1);
  const int64_t begin_ns = Clock::Monotonic().NowNs();
  EXPECT_TRUE(executor->Submit(Plan(1)).ok());
  EXPECT_GE(Clock::Monotonic().NowNs() - begin_ns, 20'000'000);
}

TEST(FaultHookDeathTest, EndsTheProcess) {
  EXPECT_EXIT(Executor("abort@1:*:*", 0, 1)->Submit(Plan(1)).IgnoreError(),
              ::testing::KilledBySignal(SIGABRT),
              "");
  EXPECT_EXIT(Executor("kill@1:*:*", 0, 1)->Submit(Plan(1)).IgnoreError(),
              ::testing::KilledBySignal(SIGKILL),
              "");
  EXPECT_EXIT(Executor("exit@1:*:*", 0, 1)->Submit(Plan(1)).IgnoreError(),
              ::testing::ExitedWithCode(4),
              "");
}

}  // namespace
}  // namespace pagoda::parallel
