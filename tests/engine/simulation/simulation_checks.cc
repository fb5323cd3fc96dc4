#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/engine/simulation/simulation.h"

// What must hold, while the simulation runs and when it is over.

namespace pagoda::engine::simulation {
namespace {

Outcome OutcomeOfReason(FinishReason reason) {
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
      break;
  }
  return Outcome::kError;
}

std::string DescribeRequest(const Request& r) {
  return absl::StrCat(r.prompt.size(),
                      " tokens, n ",
                      r.n,
                      " of ",
                      r.best_of,
                      r.sampling.beams.has_value() ? " beams" : "",
                      ", drafts ",
                      r.sampling.max_draft_tokens,
                      ", at most ",
                      r.stop.max_tokens.value_or(-1));
}

template <typename Counters>
uint64_t SumOf(const Counters& counters) {
  uint64_t sum = 0;
  for (const MetricCounter& counter : counters) sum += counter.value();
  return sum;
}

}  // namespace

void Simulation::Violate(const std::string& what) {
  if (!report_.violation.empty()) return;
  report_.violation = absl::StrCat("at ",
                                   static_cast<double>(clock_.NowNs()) * 1e-9,
                                   " s, step ",
                                   workers_->num_steps(),
                                   ": ",
                                   what,
                                   "; ",
                                   num_blocks_,
                                   " blocks, window ",
                                   kv_window_,
                                   ", context ",
                                   model_.max_model_len,
                                   ", ",
                                   config_.ShortDebugString());
  for (const auto& [key, client] : clients_) {
    absl::StrAppend(&report_.violation,
                    "\n  ",
                    key,
                    ": ",
                    DescribeRequest(client->request()),
                    ", has got ",
                    client->num_tokens(),
                    ", came at step ",
                    client->num_steps_before);
  }
}

void Simulation::Deliver(std::vector<OutputDelta> deltas) {
  if (deltas.empty()) Violate("an empty delivery");
  for (const OutputDelta& delta : deltas) {
    const uint64_t key = delta.key.value();
    Digest(key);
    Digest(static_cast<uint64_t>(delta.index));
    Digest(static_cast<uint64_t>(clock_.NowNs()));
    for (const TokenId id : delta.tokens) Digest(static_cast<uint64_t>(id));
    if (delta.finished.has_value()) Digest(static_cast<uint64_t>(delta.finished->reason));
    const auto it = clients_.find(key);
    if (it == clients_.end()) return Violate(absl::StrCat("a delta of nobody, ", key));
    SimulatedClient* const client = it->second.get();
    report_.num_tokens += delta.tokens.size();
    const std::string wrong = client->Take(delta);
    if (!wrong.empty()) {
      return Violate(absl::StrCat("request ", key, ": ", wrong));
    }
    if (client->first_delta_ns == 0) client->first_delta_ns = clock_.NowNs();
    if (client->has_ended()) {
      End(client);
      clients_.erase(it);
      continue;
    }
    if (client->NumUnread(clock_.NowNs()) > 40 && !client->excuses.is_cancelled) {
      ++report_.num_slow_readers;
      CancelRequest(client);
      is_woken_ = true;
    } else if (OneIn(2000) && !client->excuses.is_cancelled) {
      // It goes away at the very moment.
      CancelRequest(client);
      is_woken_ = true;
    }
  }
}

bool Simulation::HoldsAny(const SimulatedClient& client, const std::set<uint32_t>& tokens) const {
  if (tokens.empty()) return false;
  // Beams and draws that are not shown may meet any token.
  if (client.expected().empty() || client.request().best_of > client.request().n) return true;
  const auto holds = [&](const std::vector<TokenId>& ids) {
    return std::any_of(ids.begin(), ids.end(), [&](TokenId id) {
      return tokens.count(static_cast<uint32_t>(id)) > 0;
    });
  };
  return holds(client.request().prompt) ||
         std::any_of(client.expected().begin(), client.expected().end(), [&](const auto& output) {
           return holds(output.tokens);
         });
}

void Simulation::End(SimulatedClient* client) {
  const Request& request = client->request();
  must_end_.erase(request.key.value());
  SimulatedClient::Excuses& excuses = client->excuses;
  excuses.is_past_deadline =
      request.deadline_ns.has_value() && *request.deadline_ns <= clock_.NowNs();
  excuses.may_be_blamed |= HoldsAny(*client, workers_->fake().deadly_tokens);
  excuses.may_be_unfinite = HoldsAny(*client, workers_->fake().poisonous_tokens);
  excuses.may_lose_workers = gives_up_;
  const std::string wrong = client->CheckEnd(excuses);
  if (!wrong.empty()) {
    return Violate(absl::StrCat(
        "request ", request.key.value(), " (", DescribeRequest(request), "), ", wrong));
  }
  const FinishReason reason = client->reason();
  client->is_ranked() ? ++num_ranked_ended_
                      : ++ended_[static_cast<size_t>(OutcomeOfReason(reason))];
  report_.num_cancelled += reason == FinishReason::kCancelled ? 1 : 0;
  report_.num_past_deadline += reason == FinishReason::kDeadline ? 1 : 0;
  report_.num_stop_strings += reason == FinishReason::kStopSequence ? 1 : 0;
  // Of ranked draws one that is shown may be well.
  const bool may_be_condemned = client->is_ranked() && excuses.may_be_blamed;
  if (reason == FinishReason::kError || may_be_condemned) condemned_.insert(request.prompt);
}

void Simulation::CheckWaiting() {
  const FakeStepPipe& fake = workers_->fake();
  if (!fake.violation().empty()) Violate(fake.violation());
  if (!block_sink_.violation.empty()) Violate(block_sink_.violation);
  const EngineMetrics& m = metrics_;
  if (m.kv_blocks_used.value() + m.kv_blocks_cached.value() + m.kv_blocks_free.value() !=
      m.kv_blocks_total.value()) {
    Violate("blocks that are used, cached and free are not all");
  }
  if (m.requests_running.value() > config_.max_num_seqs()) Violate("too many sequences run");
  const auto num_live = static_cast<size_t>(engine_->num_live_requests());
  if (num_live != clients_.size()) {
    Violate(absl::StrCat(num_live, " requests are live, of ", clients_.size(), " clients"));
  }
  const bool is_idle = workers_->num_in_flight() == 0 && workers_->is_ready();
  if (num_live > 0 && is_idle && !fake.fault.has_value()) Violate("nobody moves");
  if (num_live == 0 && is_idle && m.kv_blocks_used.value() != 0) {
    Violate(absl::StrCat(m.kv_blocks_used.value(), " blocks are used by nobody"));
  }
  // Beams share what was generated before they parted.
  const uint64_t num_generated = m.generation_tokens.value();
  if (!hides_tokens_ && num_generated != report_.num_tokens) {
    Violate(absl::StrCat("counted ", num_generated, " tokens of ", report_.num_tokens));
  }
  CheckClients();
}

void Simulation::CheckClients() {
  for (const uint64_t key : must_end_) Violate(absl::StrCat("request ", key, " was cancelled"));
  const bool is_fcfs = config_.policy() == internal::v1::SCHEDULING_POLICY_FCFS;
  for (const auto& [key, client] : clients_) {
    const Request& request = client->request();
    if (request.deadline_ns.has_value() && *request.deadline_ns <= clock_.NowNs()) {
      Violate(absl::StrCat("request ", key, " lives beyond its deadline"));
    }
    // Of ranked draws nothing is shown before all have ended.
    if (!is_fcfs || client->is_ranked() || client->is_behind_beams) continue;
    if (client->first_delta_ns != 0) continue;
    // Everybody before it may compute his whole context, token by token; and once more for each
    // time that workers were lost. Those who come later may pass only while they cost it nothing.
    const auto waited = static_cast<int64_t>(workers_->num_steps() - client->num_steps_before);
    const auto restarts =
        static_cast<int64_t>(workers_->num_restarts() - client->num_restarts_before);
    const int64_t most = 4 * (client->num_sequences_before + request.best_of + 1) *
                         model_.max_model_len * (1 + restarts);
    report_.most_wait_steps = std::max(report_.most_wait_steps, waited);
    if (waited > most)
      Violate(absl::StrCat("request ",
                           key,
                           " (",
                           DescribeRequest(request),
                           ") has waited for ",
                           waited,
                           " steps, behind ",
                           client->num_sequences_before,
                           " sequences; restarts ",
                           restarts));
  }
}

void Simulation::CheckOver() {
  if (!report_.violation.empty()) return;
  if (!clients_.empty()) Violate(absl::StrCat(clients_.size(), " requests have not ended"));
  const EngineMetrics& m = metrics_;
  if (!gives_up_ && m.kv_blocks_used.value() != 0) Violate("blocks are left");
  // What a request whose draws are ranked counts as, one that is not shown may decide.
  for (size_t i = 0; i < kNumOutcomes; ++i) {
    const uint64_t counted = m.requests_finished[i].value();
    if (counted < ended_[i] || counted > ended_[i] + num_ranked_ended_) {
      Violate(absl::StrCat("outcome ", i, ": counted ", counted, ", seen ", ended_[i]));
    }
  }
  const uint64_t num_seen =
      std::accumulate(ended_.begin(), ended_.end(), uint64_t{0}) + num_ranked_ended_;
  if (SumOf(m.requests_finished) != num_seen || num_seen != report_.num_requests) {
    Violate("not every request is counted once");
  }
  if (SumOf(m.worker_restarts) != workers_->num_restarts()) Violate("restarts are counted wrongly");
  if (m.spec_accepted_tokens.value() > m.spec_draft_tokens.value()) Violate("drafts");
}

}  // namespace pagoda::engine::simulation
