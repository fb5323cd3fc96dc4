#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/metrics.h"
#include "engine/output_batch.h"
#include "engine/scheduled_step.h"
#include "engine/scheduler.h"
#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::engine {

// Joins a step's result to its plan: retires rows, adds tokens, checks stops, makes text, ends what
// has ended. A row of a sequence that ended while the step was in flight is discarded here. Engine
// thread only.
class StepApplier {
 public:
  // All outlive this.
  StepApplier(Scheduler* scheduler,
              SequenceBlocks* blocks,
              OutputBatch* outputs,
              EngineMetrics* metrics)
      : scheduler_(scheduler), blocks_(blocks), outputs_(outputs), metrics_(metrics) {}

  // REQUIRES: `step` is the oldest in flight. An error means that the result does not answer the
  // plan.
  absl::Status Apply(const ScheduledStep& step,
                     const internal::v1::StepResult& result,
                     int64_t now_ns);
  // Ends a sequence for which no row will come: length, by its own or the pool's limit.
  void EndExhausted(Sequence* sequence, int64_t now_ns);
  // Ends every sequence of the request that has not ended.
  void Abort(LiveRequest* live, FinishReason reason, const absl::Status& status, int64_t now_ns);

 private:
  // Where the next row finds its part of the result.
  struct Cursor {
    int sampled = 0;
    int token = 0;
    int logprobs = 0;
  };

  // What one row was given.
  struct Sample {
    const internal::v1::StepResult* result;
    int first_token = 0;
    int num_tokens = 0;
    int first_logprobs = -1;   // -1: none were asked for
    bool is_complete = false;  // nothing can follow: the constraint is satisfied
  };

  absl::Status CheckShape(const ScheduledStep& step, const internal::v1::StepResult& result) const;
  void TakePromptLogprobs(const ScheduledStep& step, const internal::v1::StepResult& result);
  void FailRows(const ScheduledStep& step, const internal::v1::StepResult& result, int64_t now_ns);
  void EndStuckRows(const ScheduledStep& step,
                    const internal::v1::StepResult& result,
                    int64_t now_ns);
  absl::Status ApplySample(const ScheduledRow& row,
                           const internal::v1::StepResult& result,
                           int64_t now_ns,
                           Cursor* cursor);
  void AddTokens(Sequence* sequence, const Sample& sample, int64_t now_ns);
  // What may follow a beam; once all of the request have said it, the next ones begin.
  absl::Status TakeBeam(Sequence* sequence, const Sample& sample, int64_t now_ns);
  void AdvanceBeams(LiveRequest* live, int64_t now_ns);
  // The request ends with the beams that have ended.
  void FinishBeams(LiveRequest* live, int64_t now_ns);
  // What the row's drafts were worth, and the next draft.
  void ConcludeDrafts(const ScheduledRow& row, int32_t num_accepted);
  void AddLogprobs(Sequence* sequence,
                   TokenId id,
                   const internal::v1::TokenLogprobs& logprobs,
                   OutputDelta* delta);
  // Where the prompt has been computed, to its last token, siblings may begin.
  void CompletePrompt(const ScheduledRow& row, int64_t now_ns);
  void CompletePrompt(LiveRequest* live, int64_t now_ns);
  void NoteTokens(Sequence* sequence, int64_t num_tokens, int64_t now_ns);
  void FlushInterToken();

  Scheduler* const scheduler_;
  SequenceBlocks* const blocks_;
  OutputBatch* const outputs_;
  EngineMetrics* const metrics_;
  // Gaps between tokens, run-length coded: most sequences of a step have the same.
  int64_t gap_ns_ = 0;
  uint64_t num_gaps_ = 0;
  uint64_t num_generated_ = 0;
  std::string unwanted_text_;
};

}  // namespace pagoda::engine
