#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/model/model_config.h"
#include "engine/model/model_runner.h"
#include "parallel/process_group.h"

namespace pagoda::bench {

// Ends the benchmark with the message of an error.
void Require(const absl::Status& status);

struct ModelLoopOptions {
  std::string model_dir = "tests/data/shapes/smollm2-135m";
  std::string dtype = "bfloat16";
  int threads = 2;
  int context = 128;  // tokens before a decode step
  int prompt = 512;   // tokens of Prefill
  int batch = 8;      // most sequences
  int max_decode_steps = 64;
  // Of those that share the model; see `group` below.
  int rank = 0;
  int num_ranks = 1;
};

// A model with random weights on the CPU, under step plans whose slot i has blocks [i * n, (i + 1)
// * n). Thread-compatible.
class ModelLoop {
 public:
  // `group`: of the ranks; null for one. Ranks load and step together.
  ModelLoop(const ModelLoopOptions& options,
            const engine::ModelConfig& model,
            std::unique_ptr<parallel::ProcessGroup> group = nullptr);

  const std::string& device_name() const { return device_name_; }

  // Forgets everything and prefills `batch` sequences of `context` tokens.
  void StartDecode(int batch);
  // Seconds of one decode step.
  double DecodeStep();
  // Seconds of one prompt, its first token included.
  double Prefill();

 private:
  void Restart();
  void AddRow(int slot, int num_tokens);
  void AddSequence(int slot, int num_tokens);
  double RunStep();

  const ModelLoopOptions options_;
  const engine::ModelConfig model_;
  engine::ModelRunner runner_;
  std::string device_name_;
  uint32_t blocks_per_slot_ = 0;
  int batch_ = 0;
  uint64_t step_id_ = 0;
  internal::v1::StepPlan plan_;
};

}  // namespace pagoda::bench
