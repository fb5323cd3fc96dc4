#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pagoda/internal/v1/worker.pb.h"
#include "parallel/process_group.h"
#include "parallel/step_executor.h"
#include "tests/fakes/graph_backend.h"

namespace pagoda::engine {

// One sequence to run and what came of it.
struct DrivenSequence {
  std::vector<uint32_t> prompt;
  int32_t max_tokens = 1;
  internal::v1::RowSampling sampling;
  // Step before which it is not scheduled.
  uint64_t first_step = 1;
  // What may follow its tokens so far, prompt included; none of it is in flight then.
  std::function<std::vector<uint32_t>(const std::vector<uint32_t>& tokens)> draft;

  std::vector<uint32_t> tokens;
  std::vector<internal::v1::TokenLogprobs> logprobs;  // one a token, where asked for
  // All positions from 1 on, joined over steps.
  internal::v1::PromptLogprobs prompt_logprobs;
  bool failed = false;
  int num_steps = 0;  // that gave tokens
};

// Sampling with every field neutral: greedy.
internal::v1::RowSampling GreedySampling();

struct DriverOptions {
  std::string model_dir;
  std::string device = "cpu";
  std::string dtype = "float32";
  std::string cpu_isa = "auto";
  // On a backend that records graphs (GraphBackend).
  bool graphs = false;
  bool dummy = false;
  uint32_t cpu_threads = 2;
  uint32_t max_num_seqs = 16;
  uint32_t max_num_batched_tokens = 512;
  uint32_t block_size = 16;
  uint32_t num_blocks = 128;
  uint32_t max_model_len = 0;
  uint32_t num_known_ids = 0;
  // Of a group of ranks.
  uint32_t tensor_rank = 0;
  uint32_t tensor_ranks = 1;
  // Plans submitted before the result of the first is taken.
  int steps_in_flight = 2;
};

// A scheduler of the simplest kind in front of a StepExecutor: sequences in order share the token
// budget; blocks come from a scrambled list when needed and go back when a sequence ends, with
// their old contents.
class RunnerDriver {
 public:
  static absl::StatusOr<std::unique_ptr<RunnerDriver>> Make(
      const DriverOptions& options, std::unique_ptr<parallel::ProcessGroup> group = nullptr);

  // Runs all sequences to their end.
  absl::Status Run(std::vector<DrivenSequence>& sequences);
  const internal::v1::ModelReady& ready() const { return ready_; }
  parallel::StepExecutor& executor() { return *executor_; }
  // With options.graphs.
  kernels::GraphBackend& graph_backend() { return *graph_backend_; }

 private:
  struct Running;

  explicit RunnerDriver(const DriverOptions& options);
  // False: every sequence waits for a result.
  absl::StatusOr<bool> SubmitStep(std::vector<Running>& running);
  absl::Status TakeStep(std::vector<Running>& running);

  const DriverOptions options_;
  kernels::GraphBackend* graph_backend_ = nullptr;  // the executor's
  std::unique_ptr<parallel::StepExecutor> executor_;
  internal::v1::ModelReady ready_;
  uint64_t step_id_ = 0;
  int num_in_flight_ = 0;
  std::deque<std::vector<uint32_t>> rows_in_flight_;  // slots, by step
  std::deque<uint32_t> free_blocks_;
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> released_slots_;
};

}  // namespace pagoda::engine
