#include "engine/output_batch.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/check.h"

namespace pagoda::engine {
namespace {

Outcome OutcomeOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
    case FinishReason::kStopSequence:
      return Outcome::kStop;
    case FinishReason::kLength:
      return Outcome::kLength;
    case FinishReason::kCancelled:
      return Outcome::kCancelled;
    case FinishReason::kDeadline:
      return Outcome::kDeadline;
    case FinishReason::kError:
      return Outcome::kError;
  }
  return Outcome::kError;
}

// Draws that ended by themselves come first, then by mean log-probability of their tokens, or by
// score of the beam.
double RankOf(const Sequence& sequence, const OutputDelta& draw) {
  constexpr double kLast = -std::numeric_limits<double>::infinity();
  if (!draw.finished->status.ok() || sequence.output.empty()) return kLast;
  if (sequence.is_beam) return sequence.sum_logprob;
  return sequence.sum_logprob / static_cast<double>(sequence.output.size());
}

}  // namespace

OutputDelta& OutputBatch::Open(Sequence* sequence, int64_t now_ns) {
  if (sequence->ranks_draws) return sequence->request->draws[sequence->index];
  OutputDelta& delta = deltas_.emplace_back();
  delta.key = sequence->key;
  delta.index = sequence->index;
  if (!sequence->has_delta) AddFirsts(sequence, &delta, now_ns);
  return delta;
}

void OutputBatch::AddFirsts(Sequence* sequence, OutputDelta* delta, int64_t now_ns) {
  LiveRequest* const live = sequence->request;
  sequence->has_delta = true;
  if (!live->has_started) Start(live, delta, now_ns);
  if (sequence->index == 0 && live->has_prompt_logprobs()) {
    delta->prompt_logprobs = std::move(live->prompt_logprobs);
    live->prompt_logprobs.clear();
  }
}

void OutputBatch::Start(LiveRequest* live, OutputDelta* delta, int64_t now_ns) {
  live->has_started = true;
  // A request that never ran has waited until now.
  const int64_t scheduled_ns = live->scheduled_ns != 0 ? live->scheduled_ns : now_ns;
  delta->started = RequestStarted{.num_prompt_tokens = live->num_prompt_tokens,
                                  .num_cached_tokens = live->num_cached_tokens,
                                  .queue_ns = scheduled_ns - live->request.arrival_ns};
  metrics_->queue_seconds.ObserveNs(delta->started->queue_ns);
}

void OutputBatch::Finish(Sequence* sequence, End end, int64_t now_ns) {
  LiveRequest* const live = sequence->request;
  // What this step gave the sequence goes out with its end.
  const bool is_open = !live->ranks_draws && !deltas_.empty() &&
                       deltas_.back().key == sequence->key &&
                       deltas_.back().index == sequence->index;
  OutputDelta& delta = is_open ? deltas_.back() : Open(sequence, now_ns);
  const int64_t arrival_ns = live->request.arrival_ns;
  // A search that is cut short shows none of its beams.
  const bool is_shown = !sequence->is_beam || end.status.ok();
  const auto num_tokens = is_shown ? static_cast<int32_t>(sequence->output.size()) : 0;
  if (live->num_ended == 0 || !end.status.ok()) live->outcome = end.match.reason;
  delta.finished = SequenceFinished{
      .reason = end.match.reason,
      .matched_stop = std::move(end.match.matched_stop),
      .status = std::move(end.status),
      .num_completion_tokens = num_tokens,
      .first_token_ns = sequence->first_token_ns == 0 ? 0 : sequence->first_token_ns - arrival_ns,
      .total_ns = now_ns - arrival_ns};
  ++live->num_ended;
  if (!live->has_ended()) return;
  if (live->ranks_draws) ReleaseRankedDraws(live, now_ns);
  deltas_.back().last = true;
  Count(*live, now_ns);
  completed_.push_back(live);
}

void OutputBatch::ReleaseRankedDraws(LiveRequest* live, int64_t now_ns) {
  std::vector<size_t> by_rank(live->draws.size());
  std::iota(by_rank.begin(), by_rank.end(), size_t{0});
  std::stable_sort(by_rank.begin(), by_rank.end(), [&](size_t a, size_t b) {
    return RankOf(live->sequences[a], live->draws[a]) > RankOf(live->sequences[b], live->draws[b]);
  });
  for (int32_t i = 0; i < live->request.n; ++i) {
    OutputDelta& delta = deltas_.emplace_back(std::move(live->draws[by_rank[i]]));
    delta.key = live->request.key;
    delta.index = i;
    // The worker was asked for log-probabilities for the ranking alone.
    if (!live->request.sampling.num_logprobs.has_value()) delta.logprobs.clear();
    if (i > 0) continue;
    Start(live, &delta, now_ns);
    if (live->has_prompt_logprobs()) delta.prompt_logprobs = std::move(live->prompt_logprobs);
  }
}

void OutputBatch::Count(const LiveRequest& live, int64_t now_ns) {
  int64_t num_output_tokens = 0;
  for (const Sequence& sequence : live.sequences) num_output_tokens += sequence.output.size();
  metrics_->requests_finished[static_cast<size_t>(OutcomeOf(live.outcome))].Add(1);
  metrics_->request_seconds.ObserveNs(now_ns - live.request.arrival_ns);
  metrics_->request_prompt_tokens.Observe(live.num_prompt_tokens);
  metrics_->request_generation_tokens.Observe(static_cast<double>(num_output_tokens));
  if (live.first_token_ns != 0) metrics_->decode_seconds.ObserveNs(now_ns - live.first_token_ns);
}

std::vector<OutputDelta> OutputBatch::Take() {
  std::vector<OutputDelta> deltas = std::move(deltas_);
  deltas_ = {};
  return deltas;
}

}  // namespace pagoda::engine
