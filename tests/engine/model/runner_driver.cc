#include "tests/engine/model/runner_driver.h"

#include <algorithm>
#include <utility>

#include "engine/model/executor_factory.h"
#include "engine/model/model_runner.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {

using internal::v1::NewSequence;
using internal::v1::StepPlan;
using internal::v1::StepResult;

struct RunnerDriver::Running {
  DrivenSequence* sequence = nullptr;
  uint32_t slot = 0;
  bool started = false;
  bool ended = false;
  uint32_t num_computed = 0;
  uint32_t num_tokens = 0;  // placeholders included
  int num_rows_in_flight = 0;
  std::vector<uint32_t> blocks;

  uint32_t num_final() const {
    return static_cast<uint32_t>(sequence->prompt.size()) +
           static_cast<uint32_t>(sequence->max_tokens);
  }
};

internal::v1::RowSampling GreedySampling() {
  internal::v1::RowSampling sampling;
  sampling.set_top_p(1.0f);
  sampling.set_typical_p(1.0f);
  sampling.set_repetition_penalty(1.0f);
  return sampling;
}

RunnerDriver::RunnerDriver(const DriverOptions& options) : options_(options) {
  // 7 is prime to every power of two: block order is neither rising nor falling.
  for (uint32_t i = 0; i < options.num_blocks; ++i) {
    free_blocks_.push_back((i * 7 + 3) % options.num_blocks);
  }
  for (uint32_t i = 0; i < options.max_num_seqs; ++i) free_slots_.push_back(i);
}

absl::StatusOr<std::unique_ptr<RunnerDriver>> RunnerDriver::Make(
    const DriverOptions& options, std::unique_ptr<parallel::ProcessGroup> group) {
  internal::v1::OpenWorker open;
  open.set_tensor_rank(options.tensor_rank);
  open.set_tensor_ranks(options.tensor_ranks);
  internal::v1::ServerConfig& config = *open.mutable_config();
  config.mutable_model()->set_path(options.model_dir);
  config.mutable_model()->set_dtype(options.dtype);
  config.mutable_model()->set_load_format(options.dummy ? internal::v1::LOAD_FORMAT_DUMMY
                                                        : internal::v1::LOAD_FORMAT_SAFETENSORS);
  config.mutable_model()->set_max_model_len(options.max_model_len);
  config.mutable_model()->set_num_known_ids(options.num_known_ids);
  config.mutable_engine()->set_max_num_seqs(options.max_num_seqs);
  config.mutable_engine()->set_max_num_batched_tokens(options.max_num_batched_tokens);
  config.mutable_engine()->set_block_size(options.block_size);
  config.mutable_engine()->set_max_steps_in_flight(static_cast<uint32_t>(options.steps_in_flight));
  config.mutable_worker()->set_device(options.device);
  config.mutable_worker()->set_cpu_threads(options.cpu_threads);
  config.mutable_worker()->set_cpu_isa(options.cpu_isa);

  std::unique_ptr<RunnerDriver> driver(new RunnerDriver(options));
  if (options.graphs) {
    driver->executor_ = std::make_unique<ModelRunner>(
        [driver = driver.get()](absl::string_view name, const kernels::BackendOptions& backend)
            -> absl::StatusOr<std::unique_ptr<kernels::Backend>> {
          PAGODA_ASSIGN_OR_RETURN(auto inner, kernels::OpenBackend(name, backend));
          auto outer = std::make_unique<kernels::GraphBackend>(std::move(inner));
          driver->graph_backend_ = outer.get();
          return outer;
        },
        &Clock::Monotonic(),
        std::move(group));
  } else {
    PAGODA_ASSIGN_OR_RETURN(driver->executor_, MakeStepExecutor(open, std::move(group)));
  }
  PAGODA_RETURN_IF_ERROR(driver->executor_->Open(open).status());
  internal::v1::LoadModel load;
  load.set_num_kv_blocks(options.num_blocks);
  PAGODA_ASSIGN_OR_RETURN(driver->ready_, driver->executor_->Load(load, nullptr));
  return driver;
}

absl::StatusOr<bool> RunnerDriver::SubmitStep(std::vector<Running>& running) {
  const auto waits = [](const Running& run) {
    return run.ended || (run.sequence->draft != nullptr && run.num_rows_in_flight > 0);
  };
  if (std::all_of(running.begin(), running.end(), waits)) return false;
  StepPlan plan;
  plan.set_step_id(++step_id_);
  for (uint32_t slot : std::exchange(released_slots_, {})) {
    plan.add_released_slots(slot);
    free_slots_.push_back(slot);
  }
  uint32_t budget = options_.max_num_batched_tokens;
  for (Running& run : running) {
    const bool may_start = step_id_ >= run.sequence->first_step && !free_slots_.empty();
    if (waits(run) || budget == 0 || (!run.started && !may_start)) continue;
    // The last token is never computed.
    if (run.started && run.num_tokens == run.num_final()) continue;
    const bool is_new = !std::exchange(run.started, true);
    if (is_new) {
      run.slot = free_slots_.back();
      free_slots_.pop_back();
      run.num_tokens = static_cast<uint32_t>(run.sequence->prompt.size());
    }
    uint32_t count = std::min(budget, run.num_tokens - run.num_computed);
    budget -= count;
    run.num_computed += count;
    const bool samples = run.num_computed == run.num_tokens;
    if (!is_new && samples && run.sequence->draft != nullptr) {
      std::vector<uint32_t> tokens = run.sequence->prompt;
      tokens.insert(tokens.end(), run.sequence->tokens.begin(), run.sequence->tokens.end());
      std::vector<uint32_t> draft = run.sequence->draft(tokens);
      draft.resize(std::min<size_t>({draft.size(), budget, run.num_final() - run.num_tokens - 1}));
      if (!draft.empty()) {
        internal::v1::Draft& added = *plan.add_drafts();
        added.set_slot(run.slot);
        added.mutable_token_ids()->Assign(draft.begin(), draft.end());
      }
      const uint32_t num_drafts = static_cast<uint32_t>(draft.size());
      budget -= num_drafts;
      count += num_drafts;
      run.num_computed += num_drafts;
    }
    std::vector<uint32_t> grown;
    while (run.blocks.size() * options_.block_size < run.num_computed) {
      if (free_blocks_.empty()) return absl::ResourceExhaustedError("the test has too few blocks");
      grown.push_back(free_blocks_.front());
      run.blocks.push_back(free_blocks_.front());
      free_blocks_.pop_front();
    }
    if (is_new) {
      NewSequence& added = *plan.add_new_sequences();
      added.set_slot(run.slot);
      added.mutable_token_ids()->Assign(run.sequence->prompt.begin(), run.sequence->prompt.end());
      added.set_num_prompt_tokens(run.num_tokens);
      added.add_block_tables()->mutable_block_ids()->Assign(grown.begin(), grown.end());
      *added.mutable_sampling() = run.sequence->sampling;
    } else if (!grown.empty()) {
      plan.add_appended_slots(run.slot);
      plan.add_appended_counts(static_cast<uint32_t>(grown.size()));
      for (uint32_t block : grown) plan.add_appended_blocks(block);
    }
    ++run.num_rows_in_flight;
    plan.add_row_slots(run.slot);
    plan.add_row_num_tokens(count);
    plan.add_row_samples(samples ? 1 : 0);
    if (samples) ++run.num_tokens;
  }
  ++num_in_flight_;
  PAGODA_RETURN_IF_ERROR(executor_->Submit(plan));
  rows_in_flight_.emplace_back(plan.row_slots().begin(), plan.row_slots().end());
  return true;
}

absl::Status RunnerDriver::TakeStep(std::vector<Running>& running) {
  StepResult result;
  bool taken = false;
  while (!taken) {
    PAGODA_ASSIGN_OR_RETURN(taken, executor_->TakeResult(&result));
  }
  --num_in_flight_;
  const auto run_of = [&running](uint32_t slot) {
    return std::find_if(running.begin(), running.end(), [slot](const Running& run) {
      return run.started && !run.ended && run.slot == slot;
    });
  };
  for (const uint32_t slot : rows_in_flight_.front()) {
    const auto run = run_of(slot);
    if (run != running.end()) --run->num_rows_in_flight;
  }
  rows_in_flight_.pop_front();
  for (const internal::v1::PromptLogprobs& logprobs : result.prompt_logprobs()) {
    const auto run = run_of(logprobs.slot());
    if (run != running.end()) run->sequence->prompt_logprobs.MergeFrom(logprobs);
  }
  for (const internal::v1::TokenLogprobs& logprobs : result.logprobs()) {
    const auto run = run_of(logprobs.slot());
    if (run != running.end()) run->sequence->logprobs.push_back(logprobs);
  }
  const auto end = [this](Running& run) {
    run.ended = true;
    released_slots_.push_back(run.slot);
    free_blocks_.insert(free_blocks_.end(), run.blocks.begin(), run.blocks.end());
  };
  for (uint32_t slot : result.failed_slots()) {
    const auto run = run_of(slot);
    if (run == running.end()) continue;
    run->sequence->failed = true;
    end(*run);
  }
  int next_token = 0;
  for (int i = 0; i < result.sampled_slots_size(); ++i) {
    const int count = result.num_tokens_size() == 0 ? 1 : static_cast<int>(result.num_tokens(i));
    const int first = std::exchange(next_token, next_token + count);
    const auto run = run_of(result.sampled_slots(i));
    if (run == running.end()) continue;
    DrivenSequence& sequence = *run->sequence;
    ++sequence.num_steps;
    for (int j = first; j < next_token; ++j) sequence.tokens.push_back(result.token_ids(j));
    if (sequence.draft != nullptr) {
      run->num_tokens = static_cast<uint32_t>(sequence.prompt.size()) +
                        static_cast<uint32_t>(sequence.tokens.size());
      run->num_computed = run->num_tokens - 1;
    }
    if (sequence.tokens.size() == static_cast<size_t>(sequence.max_tokens)) end(*run);
  }
  return absl::OkStatus();
}

absl::Status RunnerDriver::Run(std::vector<DrivenSequence>& sequences) {
  std::vector<Running> running;
  for (DrivenSequence& sequence : sequences) running.push_back({.sequence = &sequence});
  const auto all_ended = [&running] {
    return std::all_of(
        running.begin(), running.end(), [](const Running& run) { return run.ended; });
  };
  while (!all_ended()) {
    PAGODA_ASSIGN_OR_RETURN(const bool submitted, SubmitStep(running));
    if (!submitted || num_in_flight_ == options_.steps_in_flight) {
      PAGODA_RETURN_IF_ERROR(TakeStep(running));
    }
  }
  while (num_in_flight_ > 0) PAGODA_RETURN_IF_ERROR(TakeStep(running));
  return absl::OkStatus();
}

}  // namespace pagoda::engine
