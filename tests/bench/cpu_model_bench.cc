// Decode and prefill of a whole model on the CPU with random weights, beside what the machine can
// do: bytes of weights a step over the read bandwidth, and operations of a prompt over the peak of
// the instruction. Probe and subject alternate; the best of each counts.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "engine/model/model_config.h"
#include "engine/model/model_runner.h"
#include "kernels/base/clock.h"
#include "tests/bench/cpu_probe.h"

namespace pagoda::bench {
namespace {

using engine::ModelConfig;
using internal::v1::NewSequence;
using internal::v1::StepPlan;
using internal::v1::StepResult;

struct Options {
  std::string model_dir = "tests/data/shapes/smollm2-135m";
  std::string dtype = "bfloat16";
  std::string json_path;
  int threads = 2;
  int passes = 9;
  int context = 128;
  int prompt = 512;
  int batch = 8;
};

constexpr uint32_t kBlockSize = 16;
constexpr int kDecodeStepsPerPass = 4;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "cpu_model_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

// A model under step plans whose slot i has blocks [i * n, (i + 1) * n).
class Subject {
 public:
  Subject(const Options& options, const ModelConfig& model) : options_(options), model_(model) {
    const uint32_t longest = static_cast<uint32_t>(
        std::max(options.prompt, options.context + kDecodeStepsPerPass * (options.passes + 1) + 1));
    blocks_per_slot_ = (longest + kBlockSize - 1) / kBlockSize;
    internal::v1::OpenWorker open;
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

  const std::string& device_name() const { return device_name_; }

  // Forgets everything and prefills `batch` sequences of `context` tokens.
  void StartDecode(int batch) {
    Restart();
    for (int i = 0; i < batch; ++i) AddSequence(i, options_.context);
    RunStep();
    batch_ = batch;
  }
  // Seconds of one decode step.
  double DecodeStep() {
    for (int i = 0; i < batch_; ++i) AddRow(i, 1);
    return RunStep();
  }
  // Seconds of one prompt, its first token included.
  double Prefill() {
    Restart();
    AddSequence(0, options_.prompt);
    return RunStep();
  }

 private:
  void Restart() {
    Require(runner_.Reset());
    step_id_ = 0;
    plan_.Clear();
  }
  void AddRow(int slot, int num_tokens) {
    plan_.add_row_slots(static_cast<uint32_t>(slot));
    plan_.add_row_num_tokens(static_cast<uint32_t>(num_tokens));
    plan_.add_row_samples(1);
  }
  void AddSequence(int slot, int num_tokens) {
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
  double RunStep() {
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

  const Options options_;
  const ModelConfig model_;
  engine::ModelRunner runner_;
  std::string device_name_;
  uint32_t blocks_per_slot_ = 0;
  int batch_ = 0;
  uint64_t step_id_ = 0;
  StepPlan plan_;
};

// Bytes that a decode step reads: every matrix once (of an untied embedding only the rows of its
// tokens, which do not count) and the keys and values of the context.
double DecodeBytes(const ModelConfig& model, DType dtype, int batch, int context) {
  double bytes = static_cast<double>(engine::WeightBytes(model, dtype));
  if (!model.tie_word_embeddings) {
    bytes -= static_cast<double>(model.vocab_size) * model.hidden_size *
             static_cast<double>(DTypeBytes(dtype));
  }
  return bytes + static_cast<double>(engine::KvBytesPerToken(model, dtype)) * batch * context;
}

// Multiplications and additions of a prompt: layers for every token, causal attention, the head
// once.
double PrefillFlops(const ModelConfig& model, int prompt) {
  const double hidden = model.hidden_size, q_width = double{1} * model.num_heads * model.head_dim;
  const double kv_width = double{1} * model.num_kv_heads * model.head_dim;
  const double layer = hidden * (2 * q_width + 2 * kv_width + 3.0 * model.intermediate_size);
  const double pairs = 0.5 * prompt * (prompt + 1.0);
  return 2.0 * model.num_layers * (layer * prompt + 2.0 * q_width * pairs) +
         2.0 * hidden * model.vocab_size;
}

struct Best {
  double read_bytes_per_second = 0;
  double peak_flops = 0;
  double decode_one_s = std::numeric_limits<double>::infinity();
  double decode_batch_s = std::numeric_limits<double>::infinity();
  double prefill_s = std::numeric_limits<double>::infinity();
};

Best Measure(const Options& options, Subject& subject) {
  const bool is_bf16 = options.dtype == "bfloat16" && HasInstruction(Instruction::kBf16Dot);
  const Instruction instruction = is_bf16 ? Instruction::kBf16Dot : Instruction::kFloat32Fma;
  ReadProbe probe(options.threads, size_t{2} << 30);
  Best best;
  for (int pass = 0; pass < options.passes; ++pass) {
    best.read_bytes_per_second = std::max(best.read_bytes_per_second, probe.Measure());
    subject.StartDecode(1);
    for (int i = 0; i < kDecodeStepsPerPass; ++i) {
      best.decode_one_s = std::min(best.decode_one_s, subject.DecodeStep());
    }
    subject.StartDecode(options.batch);
    for (int i = 0; i < kDecodeStepsPerPass; ++i) {
      best.decode_batch_s = std::min(best.decode_batch_s, subject.DecodeStep());
    }
    best.peak_flops = std::max(best.peak_flops, MeasurePeakFlops(instruction, options.threads));
    best.prefill_s = std::min(best.prefill_s, subject.Prefill());
  }
  return best;
}

nlohmann::json Report(const Options& options,
                      const ModelConfig& model,
                      const std::string& device_name,
                      const Best& best) {
  const DType dtype = *ParseDType(options.dtype);
  const double one_bytes = DecodeBytes(model, dtype, 1, options.context);
  const double one_floor_s = one_bytes / best.read_bytes_per_second;
  const double batch_floor_s =
      DecodeBytes(model, dtype, options.batch, options.context) / best.read_bytes_per_second;
  const double flops = PrefillFlops(model, options.prompt);
  const double prefill_floor_s = flops / best.peak_flops;
  std::printf("%s, %s, %s, %d threads\n",
              options.model_dir.c_str(),
              options.dtype.c_str(),
              device_name.c_str(),
              options.threads);
  std::printf("read bandwidth %.1f GB/s, peak %.0f GFLOP/s\n",
              best.read_bytes_per_second * 1e-9,
              best.peak_flops * 1e-9);
  const auto line = [](const char* name, double floor_s, double s, const char* goal) {
    std::printf("%-24s floor %8.3f ms  figure %8.3f ms  ratio %.3f  (%s)\n",
                name,
                floor_s * 1e3,
                s * 1e3,
                floor_s / s,
                goal);
  };
  line("decode, batch 1", one_floor_s, best.decode_one_s, "goal: at least 0.85");
  line("decode, batch N", batch_floor_s, best.decode_batch_s, "see the cost below");
  line("prefill", prefill_floor_s, best.prefill_s, "goal: at least 0.60");
  std::printf("batch %d costs %.3f of batch 1 (goal: below 1.5)\n",
              options.batch,
              best.decode_batch_s / best.decode_one_s);
  return {{"model", options.model_dir},
          {"dtype", options.dtype},
          {"device", device_name},
          {"threads", options.threads},
          {"context", options.context},
          {"prompt", options.prompt},
          {"batch", options.batch},
          {"read_bytes_per_second", best.read_bytes_per_second},
          {"peak_flops", best.peak_flops},
          {"decode_bytes", one_bytes},
          {"decode_one_s", best.decode_one_s},
          {"decode_one_floor_s", one_floor_s},
          {"decode_one_ratio", one_floor_s / best.decode_one_s},
          {"decode_batch_s", best.decode_batch_s},
          {"decode_batch_cost", best.decode_batch_s / best.decode_one_s},
          {"prefill_flops", flops},
          {"prefill_s", best.prefill_s},
          {"prefill_floor_s", prefill_floor_s},
          {"prefill_ratio", prefill_floor_s / best.prefill_s}};
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Decode and prefill of a model on the CPU, beside the machine's limits");
  app.add_option("--model", options.model_dir, "Directory with a config.json");
  app.add_option("--dtype", options.dtype, "bfloat16 or float32");
  app.add_option("--threads", options.threads, "Compute threads");
  app.add_option("--passes", options.passes, "Best of so many");
  app.add_option("--context", options.context, "Tokens before a decode step");
  app.add_option("--prompt", options.prompt, "Tokens of a prompt");
  app.add_option("--batch", options.batch, "Sequences of the larger batch");
  app.add_option("--json", options.json_path, "Also write the figures there");
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<ModelConfig> model = engine::LoadModelConfig(options.model_dir);
  Require(model.status());
  Subject subject(options, *model);
  const Best best = Measure(options, subject);
  const nlohmann::json report = Report(options, *model, subject.device_name(), best);
  if (!options.json_path.empty()) std::ofstream(options.json_path) << report.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) { return pagoda::bench::Main(argc, argv); }
