#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/optional.h"
#include "engine/model/output_constraints.h"
#include "engine/model/slot_table.h"
#include "kernels/base/clock.h"
#include "pagoda/internal/v1/config.pb.h"
#include "pagoda/internal/v1/worker.pb.h"
#include "parallel/step_executor.h"

namespace pagoda::engine {

// What a simulated device passes its time with.
struct SimTime {
  const Clock* clock = &Clock::Monotonic();
  // Returns when the clock has reached `deadline_ns`. Null: sleeps.
  std::function<void(int64_t deadline_ns)> sleep_until_ns;
};

// A device that does no arithmetic: the plans, slots and results of a real one, at times that the
// configuration sets. Step duration = base + per_token * tokens + per_context_token * context,
// context being the sum over rows of the tokens attended to; steps follow one another. Needs
// config.json only.
//
// The token at position p is a hash of all tokens before p and, unless greedy, the seed: alone,
// batched, chunked, preempted or restarted, a sequence goes on the same way. Ids come from the
// middle of the vocabulary, where text tokens are (special tokens stand at its ends), and are never
// an EOS id of the model. Log-probabilities are made up: the sampled token has 1/2, those after it
// 1/4, 1/8, ...
//
// TakeResult sleeps until the oldest step ends. Thread-compatible.
class SimExecutor : public parallel::StepExecutor {
 public:
  explicit SimExecutor(SimTime time = {});

  absl::StatusOr<internal::v1::WorkerHello> Open(const internal::v1::OpenWorker& open) override;
  absl::StatusOr<internal::v1::ModelReady> Load(const internal::v1::LoadModel& load,
                                                const ProgressFn& progress) override;
  absl::Status Submit(const internal::v1::StepPlan& plan) override;
  absl::StatusOr<bool> TakeResult(internal::v1::StepResult* result) override;
  absl::Status Reset() override;

 private:
  // Hash of the first `num_tokens` tokens of the sequence that has the slot.
  struct Prefix {
    uint64_t generation = 0;
    int32_t num_tokens = 0;
    uint64_t hash = 0;
  };

  // None: the sequence's constraint admits no token.
  absl::optional<TokenId> NextToken(const StepRow& row);
  // Of a row with a draft.
  void SampleDrafted(const StepRow& row, internal::v1::StepResult& result);
  void AddLogprobs(const StepRow& row, TokenId token, internal::v1::StepResult& result) const;
  void AddPromptLogprobs(const StepRow& row, internal::v1::StepResult& result) const;
  int64_t StepNs(absl::Span<const StepRow> rows) const;

  const SimTime time_;
  internal::v1::ServerConfig config_;
  absl::optional<SlotTable> slots_;
  absl::optional<OutputConstraints> constraints_;
  std::vector<Prefix> prefixes_;
  // Ids that tokens are chosen from.
  std::vector<TokenId> ordinary_ids_;
  std::deque<internal::v1::StepResult> in_flight_;
  int64_t last_end_ns_ = 0;
};

}  // namespace pagoda::engine
