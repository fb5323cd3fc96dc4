#include "engine/scheduler.h"

#include <deque>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A scheduler, its pool, and the part of the engine that retires steps: every sample is the same
// token.
class SchedulerTest : public ::testing::Test {
 protected:
  static constexpr int32_t kBlockSize = 4;

  void Start(const SchedulerOptions& options,
             uint32_t num_blocks,
             bool prefix_caching = false,
             int32_t window = 0) {
    pool_ = std::make_unique<BlockPool>(num_blocks, kBlockSize);
    blocks_ = std::make_unique<SequenceBlocks>(
        SequenceBlocks::Options{.block_size = kBlockSize,
                                .prefix_caching = prefix_caching,
                                .window = window,
                                .max_tokens_in_flight = 2 * options.max_num_batched_tokens},
        pool_.get(),
        &hasher_);
    scheduler_ = std::make_unique<Scheduler>(options, blocks_.get());
  }

  // A sequence with a prompt of its own, in the queue.
  Sequence* Add(int32_t num_prompt_tokens, int32_t max_tokens = 100, int32_t priority = 0) {
    Request request;
    request.key = RequestKey(live_.size() + 1);
    request.prompt.assign(num_prompt_tokens, static_cast<TokenId>(live_.size()));
    request.stop.max_tokens = max_tokens;
    request.priority = priority;
    live_.push_back(std::make_unique<LiveRequest>(std::move(request), 10000, nullptr));
    Sequence* const sequence = &live_.back()->sequences[0];
    sequence->order = {.priority = priority, .arrival = live_.size()};
    live_.back()->HashPrompt(hasher_, kBlockSize);
    scheduler_->Enqueue(sequence);
    return sequence;
  }

  // Plans a step and puts it in flight.
  const ScheduledStep& Plan() {
    steps_.emplace_back();
    scheduler_->Schedule(&steps_.back());
    return steps_.back();
  }

  // The oldest step in flight has run.
  void Retire() {
    for (const ScheduledRow& row : steps_.front().rows) {
      scheduler_->RetireRow(row);
      if (!row.samples || row.sequence->state == SequenceState::kEnded) continue;
      row.sequence->output.push_back(7);
      scheduler_->AddKnownToken(row.sequence);
      if (row.sequence->num_known_tokens == row.sequence->max_total_tokens) {
        scheduler_->End(row.sequence);
      }
    }
    steps_.pop_front();
  }

  const ScheduledStep& PlanAndRetire() {
    last_ = Plan();
    Retire();
    return last_;
  }

  // Tokens that the step gives the sequence; 0: no row.
  static int32_t TokensOf(const ScheduledStep& step, const Sequence* sequence) {
    for (const ScheduledRow& row : step.rows) {
      if (row.sequence == sequence) return row.num_tokens;
    }
    return 0;
  }
  static size_t NumBlocks(const Sequence* sequence) { return sequence->tables[0].size(); }

  const BlockHasher hasher_{"test"};
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<SequenceBlocks> blocks_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<LiveRequest>> live_;
  std::deque<ScheduledStep> steps_;
  ScheduledStep last_;
};

constexpr SchedulerOptions kSmall = {.max_num_seqs = 4, .max_num_batched_tokens = 8};

// The textbook case: a prompt of 20 tokens beside a decoding stream, budget 8, blocks of 4.
TEST_F(SchedulerTest, TextbookPromptBesideADecodingStream) {
  Start(kSmall, 16);
  Sequence* const stream = Add(3);
  PlanAndRetire();
  Sequence* const prompt = Add(20);
  std::vector<size_t> num_blocks;
  for (int step = 0; step < 3; ++step) {
    const uint32_t num_used_before = pool_->num_used();
    const size_t num_held_before = NumBlocks(prompt) + NumBlocks(stream);
    PlanAndRetire();
    EXPECT_EQ(TokensOf(last_, stream), 1);
    EXPECT_LE(last_.num_tokens, 8);
    num_blocks.push_back(NumBlocks(prompt));
    // Taken when written, not when promised.
    const size_t num_taken = NumBlocks(prompt) + NumBlocks(stream) - num_held_before;
    EXPECT_EQ(pool_->num_used() - num_used_before, num_taken);
    EXPECT_EQ(NumBlocks(prompt), static_cast<size_t>((prompt->num_computed + 3) / 4));
  }
  EXPECT_THAT(num_blocks, ElementsAre(2, 4, 5));
  EXPECT_EQ(prompt->num_computed, 20);
  EXPECT_EQ(prompt->output.size(), 1u);
  EXPECT_EQ(stream->output.size(), 4u);
}

TEST_F(SchedulerTest, PlansOneStepAheadOfResults) {
  Start(kSmall, 16);
  Sequence* const sequence = Add(3, 3);
  EXPECT_EQ(TokensOf(Plan(), sequence), 3);
  // The token that step 1 samples is not known here, but the worker has it.
  const ScheduledStep& second = Plan();
  ASSERT_EQ(TokensOf(second, sequence), 1);
  EXPECT_TRUE(second.rows[0].samples);
  EXPECT_THAT(second.admitted, IsEmpty());
  Retire();
  EXPECT_EQ(TokensOf(Plan(), sequence), 1);
  // Three tokens are known or on their way, and three may be made.
  EXPECT_TRUE(Plan().empty());
}

TEST_F(SchedulerTest, KeepsBlocksAndSlotUntilNoPlanNamesThem) {
  Start(kSmall, 16);
  Sequence* const sequence = Add(5);
  Plan();
  Plan();
  Retire();
  scheduler_->End(sequence);
  EXPECT_EQ(pool_->num_used(), 2u);
  EXPECT_EQ(blocks_->num_pending_free(), 2u);
  EXPECT_EQ(scheduler_->num_free_slots(), 3u);
  Retire();
  EXPECT_EQ(pool_->num_used(), 0u);
  EXPECT_EQ(blocks_->num_pending_free(), 0u);
  EXPECT_EQ(scheduler_->num_free_slots(), 4u);
  Add(1);
  EXPECT_THAT(Plan().released_slots, ElementsAre(SlotId(0)));
}

TEST_F(SchedulerTest, ShortPromptsPassALongOneWhichStillGetsHalf) {
  Start(kSmall, 64);
  Sequence* const long_one = Add(100);
  EXPECT_EQ(TokensOf(PlanAndRetire(), long_one), 8);
  Sequence* const second_long = Add(50);
  Sequence* const short_one = Add(4);
  PlanAndRetire();
  EXPECT_EQ(TokensOf(last_, long_one), 4);
  EXPECT_EQ(TokensOf(last_, short_one), 4);
  EXPECT_EQ(TokensOf(last_, second_long), 0);
  // Then the short one decodes, and the two long ones share the rest.
  PlanAndRetire();
  EXPECT_EQ(TokensOf(last_, short_one), 1);
  EXPECT_EQ(TokensOf(last_, long_one), 4);
  EXPECT_EQ(TokensOf(last_, second_long), 3);
}

TEST_F(SchedulerTest, AStreamOfShortPromptsDoesNotStarveAWaitingLongOne) {
  Start(kSmall, 64);
  Sequence* const long_one = Add(60, 1);
  int num_steps = 0;
  while (long_one->output.empty() && ++num_steps < 100) {
    Add(8, 1);
    PlanAndRetire();
  }
  EXPECT_LE(num_steps, 60 / 4 + 1);
}

TEST_F(SchedulerTest, APassedPromptComesFirstOnceTheOneBeforeItIsDone) {
  SchedulerOptions options = kSmall;
  options.max_num_seqs = 64;
  Start(options, 256);
  Add(40, 1);
  PlanAndRetire();
  Sequence* const second_long = Add(40, 1);
  int num_steps = 0;
  while (second_long->output.empty() && ++num_steps < 200) {
    // More short prompts than a step has room for.
    Add(7, 1);
    PlanAndRetire();
  }
  // Half of every step for the first, then half for the second.
  EXPECT_LE(num_steps, 32 / 4 + 40 / 4 + 1);
}

// However deep the queue is: within the next step, while the long ones end in bounded time.
TEST_F(SchedulerTest, AShortPromptPassesAnyNumberOfLongOnes) {
  SchedulerOptions options = kSmall;
  options.max_num_seqs = 16;
  Start(options, 4096);
  constexpr int kNumLong = 300;
  std::vector<Sequence*> long_ones;
  for (int i = 0; i < kNumLong; ++i) long_ones.push_back(Add(32, 1));
  int num_steps = 0;
  for (; long_ones.back()->output.empty(); ++num_steps) {
    ASSERT_LT(num_steps, kNumLong * 32);
    Sequence* const short_one = Add(2, 1);
    PlanAndRetire();
    ASSERT_EQ(short_one->output.size(), 1u) << num_steps;
  }
  // Two of eight tokens a step went to short ones; the rest to long ones.
  EXPECT_LE(num_steps, kNumLong * 32 / 6 + 2);
}

TEST_F(SchedulerTest, LongPromptsOfADeepQueueEndInServiceOrderBesideAFloodOfShortOnes) {
  SchedulerOptions options = kSmall;
  options.max_num_seqs = 16;
  Start(options, 4096);
  std::vector<Sequence*> long_ones;
  for (int i = 0; i < 40; ++i) long_ones.push_back(Add(32, 1));
  size_t num_done = 0;
  for (int step = 1; num_done < long_ones.size(); ++step) {
    for (int i = 0; i < 4; ++i) Add(3, 1);
    PlanAndRetire();
    while (num_done < long_ones.size() && !long_ones[num_done]->output.empty()) ++num_done;
    // Half of every step is the first one's.
    ASSERT_GE(static_cast<int>(num_done), step * 4 / 32 - 1) << step;
  }
}

// As much as it has tokens itself, and no more: it would wait for ever else.
TEST_F(SchedulerTest, LittleIsTakenOfTheBlocksOrTheSlotThatTheHeadOfTheQueueNeeds) {
  Start(kSmall, 12);
  Sequence* const running = Add(16, 100);
  PlanAndRetire();
  PlanAndRetire();
  // No more than 8 blocks are neither used nor promised, one of them for growth: one too few for
  // the head.
  Sequence* const head = Add(32, 1);
  for (int i = 0; i < 3; ++i) {
    Sequence* const short_one = Add(9, 1);
    PlanAndRetire();
    PlanAndRetire();
    EXPECT_EQ(short_one->state, SequenceState::kEnded) << i;
    EXPECT_EQ(head->state, SequenceState::kWaiting) << i;
  }
  // 30 tokens have passed; 2 would be left.
  Sequence* const too_much = Add(4, 1);
  Sequence* const short_one = Add(1, 1);
  PlanAndRetire();
  EXPECT_EQ(too_much->state, SequenceState::kWaiting);
  EXPECT_EQ(short_one->state, SequenceState::kEnded);
  scheduler_->End(running);
  PlanAndRetire();
  EXPECT_EQ(head->state, SequenceState::kRunning);

  SchedulerOptions options = kSmall;
  options.max_num_seqs = 2;
  Start(options, 64);
  Sequence* const first = Add(100, 1);
  PlanAndRetire();
  Sequence* const second = Add(50, 1);
  Sequence* const third = Add(4, 100);
  PlanAndRetire();
  EXPECT_GT(TokensOf(last_, first), 0);
  EXPECT_GT(TokensOf(last_, second), 0);
  EXPECT_EQ(TokensOf(last_, third), 0);
}

TEST_F(SchedulerTest, ShortPromptsPassLongOnesThatFillThePool) {
  SchedulerOptions options = kSmall;
  options.max_num_seqs = 16;
  // Two long ones fit, and a little.
  Start(options, 48);
  for (int i = 0; i < 50; ++i) Add(64, 16);
  for (int i = 0; i < 40; ++i) {
    for (int step = 0; step < 4; ++step) PlanAndRetire();
    Sequence* const short_one = Add(2, 1);
    PlanAndRetire();
    ASSERT_EQ(short_one->output.size(), 1u) << i;
  }
}

TEST_F(SchedulerTest, ChunkBoundsAPromptWhileOthersWait) {
  SchedulerOptions options = kSmall;
  options.max_prefill_chunk_tokens = 3;
  Start(options, 64);
  Sequence* const a = Add(20);
  EXPECT_EQ(TokensOf(PlanAndRetire(), a), 8);
  Sequence* const b = Add(20);
  PlanAndRetire();
  EXPECT_EQ(TokensOf(last_, a), 3);
  EXPECT_EQ(TokensOf(last_, b), 3);
}

TEST_F(SchedulerTest, NeverRunsMoreSequencesThanTheBudgetHasTokens) {
  SchedulerOptions options = kSmall;
  options.max_num_batched_tokens = 2;
  Start(options, 64);
  std::vector<Sequence*> sequences;
  for (int i = 0; i < 4; ++i) sequences.push_back(Add(1, 5));
  for (int step = 0; step < 5; ++step) {
    PlanAndRetire();
    EXPECT_EQ(TokensOf(last_, sequences[0]), 1) << step;
    EXPECT_EQ(TokensOf(last_, sequences[1]), 1) << step;
  }
  PlanAndRetire();
  EXPECT_EQ(TokensOf(last_, sequences[2]), 1);
}

TEST_F(SchedulerTest, AdmissionPromisesTheWholePrompt) {
  Start(kSmall, 6);
  Sequence* const a = Add(16);
  PlanAndRetire();
  EXPECT_EQ(NumBlocks(a), 2u);
  EXPECT_EQ(blocks_->num_reserved(), 2u);
  // Four blocks are free, two of them promised: 12 tokens do not fit beside the long one.
  Sequence* const b = Add(12);
  EXPECT_EQ(TokensOf(PlanAndRetire(), b), 0);
  EXPECT_EQ(a->num_preemptions, 0);
}

TEST_F(SchedulerTest, PreemptsTheLatestAndResumesIt) {
  Start(kSmall, 6);
  Sequence* const first = Add(8, 9);
  Sequence* const second = Add(4, 9);
  while (second->num_preemptions == 0) {
    ASSERT_FALSE(PlanAndRetire().empty());
    ASSERT_EQ(first->num_preemptions, 0);
  }
  EXPECT_EQ(second->state, SequenceState::kWaiting);
  EXPECT_EQ(NumBlocks(second), 0u);
  EXPECT_EQ(scheduler_->num_preempted_waiting(), 1u);
  const size_t num_output = second->output.size();
  EXPECT_GT(num_output, 0u);
  while (first->state != SequenceState::kEnded) ASSERT_FALSE(PlanAndRetire().empty());
  while (second->state != SequenceState::kEnded) ASSERT_FALSE(PlanAndRetire().empty());
  EXPECT_EQ(second->output.size(), 9u);
  EXPECT_EQ(scheduler_->num_preempted_waiting(), 0u);
  EXPECT_EQ(pool_->num_used(), 0u);
}

TEST_F(SchedulerTest, PriorityDecidesWhoIsPreempted) {
  SchedulerOptions options = kSmall;
  options.by_priority = true;
  Start(options, 6);
  Sequence* const unimportant = Add(4, 20, 5);
  PlanAndRetire();
  Sequence* const important = Add(8, 9, -5);
  while (important->state != SequenceState::kEnded) ASSERT_FALSE(PlanAndRetire().empty());
  EXPECT_EQ(important->num_preemptions, 0);
  EXPECT_GT(unimportant->num_preemptions, 0);
}

// Blocks of a victim that a plan in flight names are not free yet. The one who needs them waits for
// them; nobody else is preempted for the same need.
TEST_F(SchedulerTest, PreemptionStopsAtBlocksThatWillBeFree) {
  SchedulerOptions options = kSmall;
  options.max_num_batched_tokens = 16;
  Start(options, 6);
  std::vector<Sequence*> sequences;
  for (int i = 0; i < 3; ++i) sequences.push_back(Add(4, 20));
  // Three prompts of one block each; each takes its second block in the next step.
  Plan();
  Plan();
  int num_preempted = 0;
  while (num_preempted == 0) {
    Retire();
    num_preempted = Plan().num_preemptions;
  }
  EXPECT_EQ(num_preempted, 1);
  EXPECT_EQ(sequences[2]->num_preemptions, 1);
  EXPECT_EQ(blocks_->num_pending_free(), 2u);
  EXPECT_EQ(TokensOf(steps_.back(), sequences[0]), 0);
  Retire();
  EXPECT_EQ(Plan().num_preemptions, 0);
  Retire();
  Plan();
  EXPECT_EQ(TokensOf(steps_.back(), sequences[0]), 1);
  EXPECT_EQ(sequences[1]->num_preemptions, 0);
}

TEST_F(SchedulerTest, ASequenceThatOutgrowsThePoolIsExhausted) {
  Start(kSmall, 3);
  Sequence* const sequence = Add(10);
  while (PlanAndRetire().exhausted.empty()) ASSERT_FALSE(last_.empty());
  EXPECT_THAT(last_.exhausted, ElementsAre(sequence));
  // 12 tokens have keys and values; the 13th was sampled from the last of them.
  EXPECT_EQ(sequence->num_known_tokens, 13);
}

TEST_F(SchedulerTest, PromptOnlyComputesAllButTheLastTokenAndSamplesNothing) {
  Start(kSmall, 16);
  Sequence* const sequence = Add(10, 0);
  PlanAndRetire();
  PlanAndRetire();
  EXPECT_EQ(sequence->num_computed, 9);
  EXPECT_FALSE(last_.rows[0].samples);
  EXPECT_TRUE(Plan().empty());
}

TEST_F(SchedulerTest, OldestIsTheFirstInOrderOfAll) {
  Start(kSmall, 16);
  EXPECT_EQ(scheduler_->Oldest(), nullptr);
  Sequence* const a = Add(4);
  Sequence* const b = Add(4);
  EXPECT_EQ(scheduler_->Oldest(), a);
  PlanAndRetire();
  EXPECT_EQ(scheduler_->Oldest(), a);
  scheduler_->End(a);
  EXPECT_EQ(scheduler_->Oldest(), b);
}

TEST_F(SchedulerTest, PoisonedBlocksAreNotFound) {
  Start(kSmall, 16, /*prefix_caching=*/true);
  Sequence* const a = Add(8);
  PlanAndRetire();
  EXPECT_TRUE(pool_->is_published(a->tables[0][0]));
  blocks_->Poison(a);
  scheduler_->End(a);
  EXPECT_EQ(pool_->num_cached(), 0u);
  EXPECT_EQ(pool_->num_used(), 0u);
}

}  // namespace
}  // namespace pagoda::engine
