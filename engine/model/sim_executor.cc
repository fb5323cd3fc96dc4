#include "engine/model/sim_executor.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <utility>

#include "engine/model/model_config.h"
#include "engine/model/step_limits.h"
#include "engine/model/step_results.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "pagoda_version.h"

namespace pagoda::engine {
namespace {

using internal::v1::StepPlan;
using internal::v1::StepResult;

constexpr uint64_t kHashStart = 0x243F6A8885A308D3;

// The finaliser of SplitMix64: every bit of the input reaches every bit of the result.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

void SleepUntilNs(int64_t deadline_ns) {
  const timespec deadline = {.tv_sec = deadline_ns / 1'000'000'000,
                             .tv_nsec = deadline_ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) == EINTR) {
  }
}

// The middle half of the vocabulary without EOS ids; of a tiny vocabulary, all of it.
std::vector<TokenId> OrdinaryIds(int32_t vocab_size, const std::vector<TokenId>& eos_ids) {
  constexpr int32_t kTinyVocab = 16;
  int32_t begin = vocab_size / 4, end = vocab_size - vocab_size / 4;
  if (vocab_size < kTinyVocab) begin = 0, end = vocab_size;
  std::vector<TokenId> ids;
  for (TokenId id = begin; id < end; ++id) {
    if (std::find(eos_ids.begin(), eos_ids.end(), id) == eos_ids.end()) ids.push_back(id);
  }
  if (ids.empty()) ids.push_back(0);
  return ids;
}

}  // namespace

SimExecutor::SimExecutor(SimTime time) : time_(std::move(time)) {}

absl::StatusOr<internal::v1::WorkerHello> SimExecutor::Open(const internal::v1::OpenWorker& open) {
  config_ = open.config();
  // Wake at the deadline, not up to 50 us after it, which is the default.
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  internal::v1::WorkerHello hello;
  hello.set_version(PAGODA_VERSION);
  hello.set_pid(getpid());
  hello.set_device("sim");
  hello.set_device_name("simulated device");
  return hello;
}

absl::StatusOr<internal::v1::ModelReady> SimExecutor::Load(const internal::v1::LoadModel& load,
                                                           const ProgressFn&) {
  PAGODA_ASSIGN_OR_RETURN(const ModelConfig model, LoadModelConfig(config_.model().path()));
  PAGODA_ASSIGN_OR_RETURN(const GenerationConfig generation,
                          LoadGenerationConfig(config_.model().path()));
  PAGODA_ASSIGN_OR_RETURN(const StepLimits limits,
                          MakeStepLimits(config_, model, load.num_kv_blocks()));
  std::vector<TokenId> eos_ids = model.eos_token_ids;
  eos_ids.insert(eos_ids.end(), generation.eos_token_ids.begin(), generation.eos_token_ids.end());
  ordinary_ids_ = OrdinaryIds(limits.vocab_size, eos_ids);
  slots_.emplace(limits);
  constraints_.emplace(limits.num_slots, limits.vocab_size);
  prefixes_.assign(static_cast<size_t>(limits.num_slots), Prefix());
  internal::v1::ModelReady ready;
  ready.set_num_kv_blocks(load.num_kv_blocks());
  return ready;
}

int64_t SimExecutor::StepNs(absl::Span<const StepRow> rows) const {
  const internal::v1::SimConfig& sim = config_.worker().sim();
  double tokens = 0, context = 0;
  for (const StepRow& row : rows) {
    tokens += row.num_tokens;
    context += row.end_position();
  }
  const double ns =
      1000.0 * (sim.base_us() + sim.per_token_us() * tokens) + sim.per_context_token_ns() * context;
  // A year is a hang to anybody; it keeps the sum of times within 63 bits.
  return static_cast<int64_t>(std::clamp(ns, 0.0, 3.2e16));
}

absl::optional<TokenId> SimExecutor::NextToken(const StepRow& row) {
  const SlotState& slot = slots_->slot(row.slot);
  Prefix& prefix = prefixes_[static_cast<size_t>(row.slot)];
  if (prefix.generation != slot.generation) {
    prefix = {.generation = slot.generation, .num_tokens = 0, .hash = kHashStart};
  }
  for (; prefix.num_tokens < row.end_position(); ++prefix.num_tokens) {
    const TokenId token = slot.tokens[static_cast<size_t>(prefix.num_tokens)];
    prefix.hash = Mix(prefix.hash + static_cast<uint64_t>(token) + 1);
  }
  const internal::v1::RowSampling& sampling = slot.sampling;
  const uint64_t draw = Mix(prefix.hash ^ (sampling.temperature() > 0 ? Mix(sampling.seed()) : 0));
  if (const auto forced = constraints_->ForcedToken(row.slot, slot, row.end_position()))
    return *forced;
  if (sampling.has_constraint()) {
    std::vector<int32_t> allowed, masked;
    if (!constraints_->Mask(row.slot, slot, &allowed, &masked)) return absl::nullopt;
    if (allowed.empty()) {
      std::sort(masked.begin(), masked.end());
      for (int32_t id = 0; id < slots_->limits().vocab_size; ++id)
        if (!std::binary_search(masked.begin(), masked.end(), id)) allowed.push_back(id);
    }
    return allowed[draw % allowed.size()];
  }
  if (!sampling.allowed_token_ids().empty()) {
    const uint64_t count = static_cast<uint64_t>(sampling.allowed_token_ids_size());
    return static_cast<TokenId>(sampling.allowed_token_ids(static_cast<int>(draw % count)));
  }
  return ordinary_ids_[draw % ordinary_ids_.size()];
}

void SimExecutor::SampleDrafted(const StepRow& row, StepResult& result) {
  const uint64_t generation = slots_->slot(row.slot).generation;
  const std::vector<TokenId> draft = slots_->slot(row.slot).draft;
  bool is_right = true;
  for (size_t i = 0; i <= draft.size(); ++i) {
    StepRow part = row;
    part.num_tokens -= static_cast<int32_t>(draft.size() - i);
    const TokenId token = is_right ? NextToken(part).value_or(0) : 0;
    if (slots_->AcceptDrafted(row.slot, generation, part.end_position(), token)) {
      AddSampledToken(row.slot, static_cast<uint32_t>(token), result);
      AddLogprobs(row, token, result);
    }
    is_right = is_right && i < draft.size() && token == draft[i];
  }
}

void SimExecutor::AddLogprobs(const StepRow& row, TokenId token, StepResult& result) const {
  const internal::v1::RowSampling& sampling = slots_->slot(row.slot).sampling;
  if (!sampling.has_num_logprobs()) return;
  internal::v1::TokenLogprobs& logprobs = *result.add_logprobs();
  logprobs.set_slot(static_cast<uint32_t>(row.slot));
  logprobs.set_logprob(std::log(0.5f));
  logprobs.set_rank(1);
  const uint32_t vocab = static_cast<uint32_t>(slots_->limits().vocab_size);
  for (uint32_t i = 0; i < sampling.num_logprobs(); ++i) {
    logprobs.add_top_ids((static_cast<uint32_t>(token) + i) % vocab);
    logprobs.add_top_logprobs(static_cast<float>(i + 1) * std::log(0.5f));
  }
}

void SimExecutor::AddPromptLogprobs(const StepRow& row, StepResult& result) const {
  const SlotState& slot = slots_->slot(row.slot);
  if (!slot.sampling.has_num_prompt_logprobs()) return;
  // The row at position p predicts p + 1.
  const int32_t end = std::min(row.end_position() + 1, slot.num_prompt_tokens);
  const int32_t first = row.first_position + 1;
  if (first >= end) return;
  internal::v1::PromptLogprobs& logprobs = *result.add_prompt_logprobs();
  logprobs.set_slot(static_cast<uint32_t>(row.slot));
  logprobs.set_first_position(static_cast<uint32_t>(first));
  logprobs.set_num_top(slot.sampling.num_prompt_logprobs());
  const uint32_t vocab = static_cast<uint32_t>(slots_->limits().vocab_size);
  for (int32_t position = first; position < end; ++position) {
    const uint32_t token = static_cast<uint32_t>(slot.tokens[static_cast<size_t>(position)]);
    logprobs.add_logprobs(std::log(0.5f));
    logprobs.add_ranks(1);
    for (uint32_t i = 0; i < logprobs.num_top(); ++i) {
      logprobs.add_top_ids((token + i) % vocab);
      logprobs.add_top_logprobs(static_cast<float>(i + 1) * std::log(0.5f));
    }
  }
}

absl::Status SimExecutor::Submit(const StepPlan& plan) {
  PAGODA_CHECK(slots_.has_value());
  PAGODA_ASSIGN_OR_RETURN(const absl::Span<const StepRow> rows, slots_->Apply(plan));
  PAGODA_RETURN_IF_ERROR(constraints_->Apply(plan, *slots_));
  StepResult& result = in_flight_.emplace_back();
  result.set_step_id(plan.step_id());
  for (const StepRow& row : rows) {
    AddPromptLogprobs(row, result);
    if (!row.samples) continue;
    if (row.num_drafts > 0) {
      SampleDrafted(row, result);
      continue;
    }
    const absl::optional<TokenId> token = NextToken(row);
    const SlotState& slot = slots_->slot(row.slot);
    slots_->AppendKnownToken(row.slot, slot.generation, token.value_or(0));
    if (!constraints_->Conclude(row.slot, slot.generation, *slots_, &result)) continue;
    AddSampledToken(row.slot, static_cast<uint32_t>(*token), result);
    AddLogprobs(row, *token, result);
  }
  const int64_t start_ns = std::max(time_.clock->NowNs(), last_end_ns_);
  last_end_ns_ = start_ns + StepNs(rows);
  result.set_start_ns(static_cast<uint64_t>(start_ns));
  result.set_end_ns(static_cast<uint64_t>(last_end_ns_));
  return absl::OkStatus();
}

absl::StatusOr<bool> SimExecutor::TakeResult(StepResult* result) {
  if (in_flight_.empty()) return false;
  const int64_t end_ns = static_cast<int64_t>(in_flight_.front().end_ns());
  if (time_.clock->NowNs() < end_ns) {
    time_.sleep_until_ns ? time_.sleep_until_ns(end_ns) : SleepUntilNs(end_ns);
  }
  *result = std::move(in_flight_.front());
  in_flight_.pop_front();
  return true;
}

absl::Status SimExecutor::Reset() {
  in_flight_.clear();
  if (!slots_) return absl::OkStatus();
  slots_->Reset();
  constraints_.emplace(slots_->limits().num_slots, slots_->limits().vocab_size);
  return absl::OkStatus();
}

}  // namespace pagoda::engine
