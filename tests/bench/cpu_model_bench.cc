// Decode and prefill of a whole model on the CPU with random weights, beside what the machine can
// do: bytes of weights a step over the read bandwidth, and operations of a prompt over the peak of
// the instruction. Probe and subject alternate; the best of each counts.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "engine/model/model_config.h"
#include "tests/bench/cpu_probe.h"
#include "tests/bench/model_loop.h"

namespace pagoda::bench {
namespace {

using engine::ModelConfig;

struct Options : ModelLoopOptions {
  std::string json_path;
  int passes = 9;
};

constexpr int kDecodeStepsPerPass = 4;

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

Best Measure(const Options& options, ModelLoop& subject) {
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
  options.max_decode_steps = kDecodeStepsPerPass;
  ModelLoop subject(options, *model);
  const Best best = Measure(options, subject);
  const nlohmann::json report = Report(options, *model, subject.device_name(), best);
  if (!options.json_path.empty()) std::ofstream(options.json_path) << report.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) { return pagoda::bench::Main(argc, argv); }
