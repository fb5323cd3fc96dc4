#include "tests/bench/model_loop.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/base/clock.h"

namespace pagoda::bench {
namespace {

using internal::v1::NewSequence;
using internal::v1::StepResult;

constexpr uint32_t kBlockSize = 16;

}  // namespace

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

ModelLoop::ModelLoop(const ModelLoopOptions& options,
                     const engine::ModelConfig& model,
                     std::unique_ptr<parallel::ProcessGroup> group)
    : options_(options),
      model_(model),
      runner_(kernels::OpenBackend, &Clock::Monotonic(), std::move(group)) {
  const uint32_t longest = static_cast<uint32_t>(
      std::max(options.prompt, options.context + options.max_decode_steps + 1));
  blocks_per_slot_ = (longest + kBlockSize - 1) / kBlockSize;
  internal::v1::OpenWorker open;
  open.set_tensor_rank(static_cast<uint32_t>(options.rank));
  open.set_tensor_ranks(static_cast<uint32_t>(options.num_ranks));
  internal::v1::ServerConfig& config = *open.mutable_config();
  config.mutable_model()->set_path(options.model_dir);
  config.mutable_model()->set_dtype(options.dtype);
  config.mutable_model()->set_load_format(internal::v1::LOAD_FORMAT_DUMMY);
  config.mutable_model()->set_max_model_len(blocks_per_slot_ * kBlockSize);
  config.mutable_engine()->set_max_num_seqs(static_cast<uint32_t>(options.batch));
  config.mutable_engine()->set_max_num_batched_tokens(
      static_cast<uint32_t>(std::max(options.prompt, options.context * options.batch)));
  config.mutable_engine()->set_block_size(kBlockSize);
  config.mutable_worker()->set_device("cpu");
  config.mutable_worker()->set_cpu_isa("auto");
  config.mutable_worker()->set_cpu_threads(static_cast<uint32_t>(options.threads));
  const auto hello = runner_.Open(open);
  Require(hello.status());
  device_name_ = hello->device_name();
  internal::v1::LoadModel load;
  load.set_num_kv_blocks(blocks_per_slot_ * static_cast<uint32_t>(options.batch));
  Require(runner_.Load(load, nullptr).status());
}

void ModelLoop::StartDecode(int batch) {
  Restart();
  for (int i = 0; i < batch; ++i) AddSequence(i, options_.context);
  RunStep();
  batch_ = batch;
}

double ModelLoop::DecodeStep() {
  for (int i = 0; i < batch_; ++i) AddRow(i, 1);
  return RunStep();
}

double ModelLoop::Prefill() {
  Restart();
  AddSequence(0, options_.prompt);
  return RunStep();
}

void ModelLoop::Restart() {
  Require(runner_.Reset());
  step_id_ = 0;
  plan_.Clear();
}

void ModelLoop::AddRow(int slot, int num_tokens) {
  plan_.add_row_slots(static_cast<uint32_t>(slot));
  plan_.add_row_num_tokens(static_cast<uint32_t>(num_tokens));
  plan_.add_row_samples(1);
}

void ModelLoop::AddSequence(int slot, int num_tokens) {
  NewSequence& sequence = *plan_.add_new_sequences();
  sequence.set_slot(static_cast<uint32_t>(slot));
  for (int i = 0; i < num_tokens; ++i) {
    sequence.add_token_ids(static_cast<uint32_t>((slot * 31 + i * 17) % model_.vocab_size));
  }
  sequence.set_num_prompt_tokens(static_cast<uint32_t>(num_tokens));
  internal::v1::BlockTable& table = *sequence.add_block_tables();
  for (uint32_t i = 0; i < blocks_per_slot_; ++i) {
    table.add_block_ids(static_cast<uint32_t>(slot) * blocks_per_slot_ + i);
  }
  sequence.mutable_sampling()->set_top_p(1.0f);
  sequence.mutable_sampling()->set_typical_p(1.0f);
  sequence.mutable_sampling()->set_repetition_penalty(1.0f);
  AddRow(slot, num_tokens);
}

double ModelLoop::RunStep() {
  plan_.set_step_id(++step_id_);
  const int64_t start_ns = Clock::Monotonic().NowNs();
  Require(runner_.Submit(plan_));
  StepResult result;
  bool taken = false;
  while (!taken) {
    const absl::StatusOr<bool> answer = runner_.TakeResult(&result);
    Require(answer.status());
    taken = *answer;
  }
  const int64_t end_ns = Clock::Monotonic().NowNs();
  plan_.Clear();
  return static_cast<double>(end_ns - start_ns) * 1e-9;
}

}  // namespace pagoda::bench
