#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pagoda/internal/v1/worker.pb.h"
#include "parallel/step_pipe.h"

namespace pagoda::engine {

// A worker that computes nothing but keeps every book that a real one keeps, and refuses plans that
// break a rule of worker.proto. The "keys and values" of a position are a fingerprint of all tokens
// up to it, so reading a block that is foreign, stale or not yet written is seen at once. The next
// token is a fixed function of the sequence's tokens and seed.
//
// A step's result is ready after one call of Wait, as if every step took that long; then `on_wait`
// is called, which may submit, cancel, stop, move a clock.
class FakeStepPipe : public parallel::StepPipe {
 public:
  struct Options {
    uint32_t num_slots = 8;
    uint32_t num_blocks = 64;
    uint32_t block_size = 4;
    uint32_t window = 0;  // tokens that a row sees, itself included; 0: all
    uint32_t max_num_batched_tokens = 8;
    uint32_t max_steps_in_flight = 2;
    uint32_t vocab_size = 100;
    // Compare everything that a row reads, not only what it writes.
    bool checks_reads = true;
  };

  explicit FakeStepPipe(const Options& options);

  absl::Status Submit(const internal::v1::StepPlan& plan) override;
  absl::StatusOr<bool> Poll(internal::v1::StepResult* result) override;
  void Wait(int wake_fd, int64_t deadline_ns) override;
  parallel::WorkerFailure failure() const override;
  void Restart(int64_t not_before_ns) override;
  bool is_ready() const override { return is_ready_; }
  int64_t late_at_ns() const override { return INT64_MAX; }

  std::function<void()> on_wait;
  // Plans as they come, before they are checked.
  std::function<void(const internal::v1::StepPlan&)> on_plan;
  // Forces the sampled token, given the sequence's tokens; default: NextToken.
  std::function<uint32_t(const std::vector<uint32_t>& tokens, uint64_t seed)> sample;
  // Sequences that hold one of these tokens have logits that are not finite.
  std::set<uint32_t> poisonous_tokens;
  // The next Submit or Poll fails with this.
  std::optional<absl::Status> fault;
  parallel::WorkerFailure::Cause fault_cause = parallel::WorkerFailure::Cause::kKilled;
  // The result of a step with a row of a sequence that holds one of these tokens does not come: the
  // worker crashes instead.
  std::set<uint32_t> deadly_tokens;
  // After a Restart: calls of Wait until a Poll finds it ready, and how many of the next starts
  // fail.
  int num_waits_to_restart = 0;
  int num_failing_starts = 0;
  // Results do not come while this is set.
  bool is_stuck = false;

  // What the worker samples after `tokens`.
  static uint32_t NextToken(const std::vector<uint32_t>& tokens,
                            uint64_t seed,
                            uint32_t vocab_size);
  static float Logprob(const std::vector<uint32_t>& tokens, size_t num_before, uint32_t next);

  // First broken rule; empty: none.
  const std::string& violation() const { return violation_; }
  uint64_t num_steps() const { return num_steps_; }
  uint64_t num_rows() const { return num_rows_; }
  uint64_t num_drafts() const { return num_drafts_; }
  uint64_t num_drafts_accepted() const { return num_drafts_accepted_; }
  uint64_t num_tokens_computed() const { return num_tokens_computed_; }
  uint64_t num_blocks_copied() const { return num_blocks_copied_; }
  uint64_t num_restarts() const { return num_restarts_; }
  size_t num_in_flight() const { return in_flight_.size(); }
  // Blocks in the table of a live slot; empty when it has none.
  std::vector<uint32_t> TableOf(uint32_t slot) const { return slots_[slot].table; }
  uint32_t num_live_slots() const;
  uint32_t num_computed(uint32_t slot) const { return slots_[slot].num_computed; }

 private:
  struct Slot {
    bool is_live = false;
    std::vector<uint32_t> tokens;
    std::vector<uint64_t> fingerprints;  // by token
    // What the row writes at each position: the fingerprint, or from the first poisonous token on a
    // value of its own that no other sequence can mistake for what it should read.
    std::vector<uint64_t> contents;
    uint32_t num_prompt_tokens = 0;
    uint32_t num_computed = 0;
    uint32_t num_written = 0;  // the same, with drafts that were wrong
    std::vector<uint32_t> table;
    uint32_t num_behind = 0;  // of the table, from the first: no row reads them any more
    internal::v1::RowSampling sampling;
    bool is_poisoned = false;
    bool is_deadly = false;
  };
  struct InFlight {
    internal::v1::StepResult result;
    std::vector<std::pair<uint32_t, uint32_t>> named_blocks;  // block, slot
    bool is_deadly = false;
    std::set<uint32_t> rows;     // their slots
    std::set<uint32_t> drafted;  // those with a draft
  };

  void Violate(const std::string& what);
  void ReleaseSlots(const internal::v1::StepPlan& plan);
  void AddSequence(const internal::v1::NewSequence& sequence);
  void CopyBlock(const internal::v1::NewSequence& sequence);
  void AppendBlocks(const internal::v1::StepPlan& plan);
  void GiveBlock(uint32_t block, uint32_t slot, bool is_fresh);
  // First block that a row from `position` on reads.
  uint32_t FirstBlockRead(uint32_t position) const;
  uint64_t NextNotFinite();
  void Append(Slot* slot, uint32_t token);
  void ComputeRow(uint32_t slot_idx,
                  uint32_t num_tokens,
                  bool samples,
                  const std::vector<uint32_t>& draft,
                  InFlight* step);
  // One token after `num_tokens` of the slot's.
  uint32_t TokenAfter(const Slot& slot, size_t num_tokens) const;
  void Sample(uint32_t slot_idx, internal::v1::StepResult* result);
  // Keeps as much of the draft, the slot's last tokens, as is right, and samples one token more.
  void SampleDrafted(uint32_t slot_idx, size_t num_drafts, internal::v1::StepResult* result);
  void AddToken(uint32_t slot_idx,
                size_t num_before,
                uint32_t token,
                internal::v1::StepResult* result);
  void ForceTokens(const internal::v1::StepPlan& plan);
  void CheckDrafts(const internal::v1::StepPlan& plan);
  void AddPromptLogprobs(uint32_t slot_idx, uint32_t end, internal::v1::StepResult* result);

  const Options options_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> contents_;     // fingerprint by block and offset; 0: never written
  std::vector<uint32_t> num_namings_;  // tables of live slots, by block
  std::deque<InFlight> in_flight_;
  size_t num_ready_ = 0;
  uint64_t last_step_id_ = 0;
  uint64_t num_steps_ = 0;
  uint64_t num_rows_ = 0;
  uint64_t num_tokens_computed_ = 0;
  uint64_t num_blocks_copied_ = 0;
  uint64_t num_not_finite_ = 0;
  uint64_t num_restarts_ = 0;
  int num_waits_to_ready_ = 0;
  bool is_ready_ = true;
  uint64_t num_drafts_ = 0;  // tokens
  uint64_t num_drafts_accepted_ = 0;
  std::string violation_;
};

}  // namespace pagoda::engine
