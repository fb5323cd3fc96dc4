// Decode steps of a whole model on a GPU with random weights, recorded as one graph:
// `cuda_step_bench
// [--model=DIR] [--json=FILE] [BATCHxCONTEXT ...]`, beside the time that reading weights and keys
// and values once would take. Block tables are a random permutation, and no block is shared. A step
// is all that runs on the device: embedding, layers, head, greedy sampling.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "engine/model/architecture.h"
#include "engine/model/forward_pass.h"
#include "engine/model/model_config.h"
#include "engine/model/weight_loader.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "nlohmann/json.hpp"
#include "tests/bench/cuda_read_bandwidth.h"

namespace pagoda::bench {
namespace {

using kernels::Buffer;
using kernels::cuda::CudaBackend;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::printf("error: %s\n", status.ToString().c_str());
  std::exit(2);
}
template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return std::move(value).value();
}

constexpr int32_t kBlockSize = 64;

template <typename T>
Buffer Upload(CudaBackend& backend, const std::vector<T>& values) {
  Buffer buffer = Must(backend.Allocate(values.size() * sizeof(T), "bench"));
  Must(backend.CopyToDevice(buffer.data(), values.data(), values.size() * sizeof(T)));
  Must(backend.Synchronize());
  return buffer;
}

// Median microseconds of `enqueue`, after three that do not count.
template <typename Fn>
double TimeUs(CudaBackend& backend, int runs, const Fn& enqueue) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  const cudaStream_t stream = backend.context().stream;
  std::vector<float> times;
  for (int i = 0; i < runs + 3; ++i) {
    float ms = 0.0f;
    cudaEventRecord(begin, stream);
    Must(enqueue());
    cudaEventRecord(end, stream);
    Must(backend.Synchronize());
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 3) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e3;
}

// One decode row of every sequence, each with `context` tokens, the row's included.
class DecodeBatch {
 public:
  DecodeBatch(CudaBackend& backend, int32_t batch, int32_t context)
      : batch_size_(batch), blocks_per_seq_((context + kBlockSize - 1) / kBlockSize) {
    row_offsets_.resize(batch + 1);
    std::iota(row_offsets_.begin(), row_offsets_.end(), 0);
    context_lens_.assign(batch, context);
    std::vector<int32_t> table(num_blocks()), positions(batch, context - 1), slots, tokens;
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::minstd_rand(1));
    std::vector<kernels::SampleRow> rows(batch);
    for (int32_t i = 0; i < batch; ++i) {
      const int32_t block = table[i * blocks_per_seq_ + (context - 1) / kBlockSize];
      slots.push_back(block * kBlockSize + (context - 1) % kBlockSize);
      tokens.push_back(100 + 7 * i);
      rows[i].temperature = 0.0f;
    }
    host_rows_ = rows;
    device_.push_back(Upload(backend, row_offsets_));
    device_.push_back(Upload(backend, context_lens_));
    device_.push_back(Upload(backend, table));
    device_.push_back(Upload(backend, positions));
    device_.push_back(Upload(backend, slots));
    device_.push_back(Upload(backend, tokens));
    device_.push_back(Upload(backend, rows));
    batch_ = {.num_seqs = batch,
              .num_rows = batch,
              .row_offsets = device_[0].as<int32_t>(),
              .context_lens = device_[1].as<int32_t>(),
              .block_tables = device_[2].as<int32_t>(),
              .block_table_stride = blocks_per_seq_,
              .positions = device_[3].as<int32_t>(),
              .kv_slots = device_[4].as<int32_t>(),
              .host_row_offsets = row_offsets_.data(),
              .host_context_lens = context_lens_.data()};
  }

  int32_t num_blocks() const { return batch_size_ * blocks_per_seq_; }
  const kernels::AttentionBatch& batch() const { return batch_; }
  const int32_t* rows() const { return device_[0].as<int32_t>(); }  // 0, 1, 2, ...
  const int32_t* tokens() const { return device_[5].as<int32_t>(); }
  const kernels::SampleRow* sample_rows() const { return device_[6].as<kernels::SampleRow>(); }
  const kernels::SampleRow* host_sample_rows() const { return host_rows_.data(); }

 private:
  int32_t batch_size_;
  int32_t blocks_per_seq_;
  std::vector<int32_t> row_offsets_, context_lens_;
  std::vector<kernels::SampleRow> host_rows_;
  std::vector<Buffer> device_;
  kernels::AttentionBatch batch_;
};

class Model {
 public:
  Model(CudaBackend& backend, const engine::ModelConfig& config)
      : backend_(backend),
        config_(config),
        architecture_(engine::FindArchitecture(config.architecture)) {
    auto plans =
        Must(engine::PlanWeights(architecture_->weights(config), {.end_layer = config.num_layers}));
    weights_ = Must(engine::Weights::Allocate(backend, std::move(plans), DType::kBFloat16));
    Must(engine::FillDummyWeights(backend, 7, weights_.plans(), weights_));
  }

  // Microseconds of a recorded decode step.
  double StepUs(int32_t batch_size, int32_t context, int runs) {
    const DecodeBatch batch(backend_, batch_size, context);
    const auto kv = Must(engine::KvPool::Allocate(
        backend_, config_, DType::kBFloat16, batch.num_blocks(), kBlockSize));
    const auto positions = Must(engine::PositionTables::Make(backend_, config_, context));
    const auto activations = Must(engine::Activations::Allocate(
        backend_,
        engine::PlanActivations(
            config_, {.num_slots = batch_size, .max_step_tokens = batch_size}, DType::kBFloat16)));
    const Buffer sampled = Must(backend_.Allocate(size_t{4} * batch_size, "bench"));
    // Real keys and values are not zeros.
    const int64_t kv_rows = static_cast<int64_t>(kv.size_bytes()) / 2 / kBlockSize;
    Must(backend_.FillNormal({.weight = {.dtype = DType::kBFloat16,
                                         .data = kv.layer(0).data,
                                         .n = kv_rows,
                                         .k = kBlockSize},
                              .stddev = 0.5f}));
    const engine::ForwardPass pass = {.backend = &backend_,
                                      .model = &config_,
                                      .weights = &weights_,
                                      .kv = &kv,
                                      .positions = &positions,
                                      .activations = &activations,
                                      .dtype = DType::kBFloat16,
                                      .batch = &batch.batch(),
                                      .tokens = batch.tokens()};
    const kernels::SampleParams sample = {.logits = activations.logits(),
                                          .logits_stride = activations.plan().logits_stride,
                                          .rows = batch_size,
                                          .vocab_size = config_.vocab_size,
                                          .row_params = batch.sample_rows(),
                                          .host_row_params = batch.host_sample_rows(),
                                          .tokens = sampled.as<int32_t>()};
    const auto step = [&]() -> absl::Status {
      PAGODA_RETURN_IF_ERROR(architecture_->run_layers(pass));
      PAGODA_RETURN_IF_ERROR(engine::ComputeLogits(pass, batch.rows(), batch_size));
      return backend_.Sample(sample);
    };
    Must(backend_.PrepareAttention(batch.batch()));
    Must(step());
    while (Must(backend_.Tune())) {
    }
    Must(step());  // by the plans that measuring found
    Must(backend_.BeginGraph());
    const absl::Status recorded = step();
    const auto graph = backend_.EndGraph();
    Must(recorded);
    Must(graph.status());
    return TimeUs(backend_, runs, [&] { return backend_.LaunchGraph(*graph); });
  }

  // What a step reads: every matrix but the embedding table, and all keys and values.
  double StepBytes(int32_t batch_size, int32_t context) const {
    double bytes = static_cast<double>(engine::WeightBytes(config_, DType::kBFloat16));
    if (!config_.tie_word_embeddings) bytes -= 2.0 * config_.vocab_size * config_.hidden_size;
    const auto kv = static_cast<double>(engine::KvBytesPerToken(config_, DType::kBFloat16));
    return bytes + kv * batch_size * context;
  }

 private:
  CudaBackend& backend_;
  const engine::ModelConfig config_;
  const engine::Architecture* architecture_;
  engine::Weights weights_;
};

int Main(int argc, char** argv) {
  std::string json, dir = "tests/data/shapes/llama-3.1-8b";
  std::vector<std::pair<int32_t, int32_t>> steps;
  for (int i = 1; i < argc; ++i) {
    int32_t batch = 0, context = 0;
    if (absl::StartsWith(argv[i], "--json=")) {
      json = argv[i] + 7;
    } else if (absl::StartsWith(argv[i], "--model=")) {
      dir = argv[i] + 8;
    } else if (std::sscanf(argv[i], "%dx%d", &batch, &context) == 2 && batch > 0 && context > 0) {
      steps.emplace_back(batch, context);
    } else {
      std::printf("argument '%s' is not BATCHxCONTEXT, --model=DIR or --json=FILE\n", argv[i]);
      return 1;
    }
  }
  if (steps.empty()) steps = {{1, 128}, {1, 1024}, {8, 1024}, {64, 1024}};
  auto opened = CudaBackend::Create({});
  if (!opened.ok()) {
    std::printf("skipped: %s\n", opened.status().ToString().c_str());
    return 77;
  }
  auto& backend = static_cast<CudaBackend&>(**opened);
  Model model(backend, Must(engine::LoadModelConfig(dir)));
  const Buffer sink = Must(backend.Allocate(256, "bench"));
  constexpr size_t kReadBytes = size_t{4} << 30;
  const Buffer memory = Must(backend.Allocate(kReadBytes, "bench"));
  Must(backend.FillNormal(
      {.weight = {.dtype = DType::kBFloat16, .data = memory.data(), .n = 1 << 15, .k = 1 << 16}}));
  const double read_us = TimeUs(backend, 5, [&] {
    return kernels::cuda::LaunchReadAll(
        memory.data(), kReadBytes, sink.data(), backend.context().stream);
  });
  const double bandwidth = kReadBytes / read_us * 1e6;
  std::printf("%s: read bandwidth %.3f TB/s\n", dir.c_str(), bandwidth * 1e-12);
  nlohmann::json report = {{"model", dir}, {"read_bytes_per_second", bandwidth}};
  for (const auto& [batch, context] : steps) {
    const double us = model.StepUs(batch, context, 15);
    const double floor_us = model.StepBytes(batch, context) / bandwidth * 1e6;
    std::printf("decode step, %4d x %6d: %9.1f us  floor %9.1f us  x%.3f\n",
                batch,
                context,
                us,
                floor_us,
                us / floor_us);
    std::fflush(stdout);
    report["steps"].push_back(
        {{"batch", batch}, {"context", context}, {"us", us}, {"floor_us", floor_us}});
  }
  if (!json.empty()) std::ofstream(json) << report.dump(1) << '\n';
  return 0;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) { return pagoda::bench::Main(argc, argv); }
