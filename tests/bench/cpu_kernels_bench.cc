// cpu_kernels_bench [THREADS [ISA]]: each op of the cpu backend in the shapes of smollm2-135m,
// beside the floor that this machine sets for it, then a whole step of the model made of those ops.
// Probe and subject alternate; the best of each counts.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/cpu_probe.h"

namespace pagoda::bench {
namespace {

using kernels::AttentionBatch;
using kernels::Backend;
using kernels::Buffer;
using kernels::KvCacheView;
using kernels::LinearWeight;
using Clock = std::chrono::steady_clock;

constexpr int64_t kHidden = 576;
constexpr int64_t kIntermediate = 1536;
constexpr int32_t kQHeads = 9;
constexpr int32_t kKvHeads = 3;
constexpr int32_t kHeadDim = 64;
constexpr int64_t kQkv = (kQHeads + 2 * kKvHeads) * kHeadDim;
constexpr int64_t kVocab = 49152;
constexpr int kLayers = 30;
constexpr int32_t kBlockSize = 16;
constexpr int32_t kMaxContext = 4352;
constexpr int32_t kMaxSeqs = 8;
constexpr int kPasses = 9;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "cpu_kernels_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

double SecondsOf(const std::function<void()>& function) {
  const auto start = Clock::now();
  function();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Layer {
  LinearWeight qkv, o, gate_up, down;
  KvCacheView cache;
};

// Weights, cache and activations of the model, with the ops in its order.
class Model {
 public:
  explicit Model(Backend& backend) : backend_(backend) {
    weights_.reserve(4 * kLayers + 1);
    for (int i = 0; i < kLayers; ++i) {
      layers_.push_back({.qkv = Weight(kQkv, kHidden),
                         .o = Weight(kHidden, kQHeads * kHeadDim),
                         .gate_up = Weight(2 * kIntermediate, kHidden),
                         .down = Weight(kHidden, kIntermediate)});
    }
    head_ = Weight(kVocab, kHidden);
    const int64_t num_blocks = int64_t{kMaxSeqs} * kMaxContext / kBlockSize;
    const int64_t head_stride = kBlockSize * kHeadDim;
    const int64_t block_stride = 2 * kKvHeads * head_stride;
    cache_ = std::move(backend_.Allocate(kLayers * num_blocks * block_stride * 2, "cache")).value();
    for (int i = 0; i < kLayers; ++i) {
      layers_[i].cache = {.data = cache_.as<uint16_t>() + i * num_blocks * block_stride,
                          .dtype = DType::kBFloat16,
                          .num_blocks = num_blocks,
                          .block_size = kBlockSize,
                          .num_kv_heads = kKvHeads,
                          .head_dim = kHeadDim,
                          .block_stride = block_stride,
                          .v_offset = kKvHeads * head_stride,
                          .head_stride = head_stride};
    }
    std::fill_n(cache_.as<uint16_t>(), cache_.size_bytes() / 2, uint16_t{0x3c00});
    cos_sin_.assign(int64_t{kMaxContext} * kHeadDim, 0.7f);
    norm_.assign(kHidden, 1.0f);
  }

  // `rows_per_seq` new tokens for each of num_seqs sequences that then hold `context` tokens.
  void SetBatch(int32_t num_seqs, int32_t rows_per_seq, int32_t context) {
    const int32_t rows = num_seqs * rows_per_seq;
    const int32_t blocks = kMaxContext / kBlockSize;
    offsets_.clear();
    contexts_.assign(num_seqs, context);
    tables_.resize(num_seqs * blocks);
    positions_.clear();
    slots_.clear();
    for (int32_t s = 0; s <= num_seqs; ++s) offsets_.push_back(s * rows_per_seq);
    for (int32_t s = 0; s < num_seqs; ++s) {
      for (int32_t b = 0; b < blocks; ++b)
        tables_[s * blocks + b] = (b * 7 % blocks) * kMaxSeqs + s;
      for (int32_t i = 0; i < rows_per_seq; ++i) {
        const int32_t p = context - rows_per_seq + i;
        positions_.push_back(p);
        slots_.push_back(tables_[s * blocks + p / kBlockSize] * kBlockSize + p % kBlockSize);
      }
    }
    batch_ = {.num_seqs = num_seqs,
              .num_rows = rows,
              .row_offsets = offsets_.data(),
              .context_lens = contexts_.data(),
              .block_tables = tables_.data(),
              .block_table_stride = blocks,
              .positions = positions_.data(),
              .kv_slots = slots_.data(),
              .host_row_offsets = offsets_.data(),
              .host_context_lens = contexts_.data()};
    tokens_.assign(rows, 17);
    last_rows_.clear();
    for (int32_t s = 0; s < num_seqs; ++s) last_rows_.push_back((s + 1) * rows_per_seq - 1);
    x_.assign(rows * kHidden, 0.1f);
    normed_.assign(rows * kHidden, 0.1f);
    qkv_.assign(rows * kQkv, 0.1f);
    attended_.assign(rows * kHidden, 0.1f);
    gate_up_.assign(rows * 2 * kIntermediate, 0.1f);
    activated_.assign(rows * kIntermediate, 0.1f);
    logits_.resize(num_seqs * kVocab);
    sampled_.resize(num_seqs);
    sample_rows_.assign(num_seqs, {.temperature = 0.0f});
    Check(backend_.PrepareAttention(batch_));
  }

  void Linear(const LinearWeight& weight,
              const std::vector<float>& x,
              std::vector<float>* y,
              bool adds = false) {
    Check(backend_.Linear({.x = x.data(),
                           .weight = weight,
                           .residual = adds ? y->data() : nullptr,
                           .y = y->data(),
                           .m = static_cast<int64_t>(x.size()) / weight.k,
                           .x_stride = weight.k,
                           .y_stride = weight.n}));
  }
  void Qkv(int i) { Linear(layers_[i].qkv, normed_, &qkv_); }
  void O(int i) { Linear(layers_[i].o, attended_, &x_, true); }
  void GateUp(int i) { Linear(layers_[i].gate_up, normed_, &gate_up_); }
  void Down(int i) { Linear(layers_[i].down, activated_, &x_, true); }
  void Head() {
    gathered_.resize(last_rows_.size() * kHidden);
    Check(backend_.GatherRows({.x = normed_.data(),
                               .indices = last_rows_.data(),
                               .y = gathered_.data(),
                               .rows = static_cast<int64_t>(last_rows_.size()),
                               .width = kHidden}));
    Linear(head_, gathered_, &logits_);
  }
  void Embed() {
    Check(backend_.Embedding({.tokens = tokens_.data(),
                              .table = head_,
                              .y = x_.data(),
                              .rows = static_cast<int64_t>(tokens_.size())}));
  }
  void Norm() {
    Check(backend_.RmsNorm({.x = x_.data(),
                            .weight = norm_.data(),
                            .y = normed_.data(),
                            .rows = batch_.num_rows,
                            .width = kHidden,
                            .x_stride = kHidden,
                            .y_stride = kHidden}));
  }
  void Rope(int i) {
    Check(backend_.RopeKvWrite({.qkv = qkv_.data(),
                                .qkv_stride = kQkv,
                                .cos_sin = cos_sin_.data(),
                                .max_positions = kMaxContext,
                                .rotary_dim = kHeadDim,
                                .num_q_heads = kQHeads,
                                .batch = &batch_,
                                .cache = layers_[i].cache}));
  }
  void Attention(int i) {
    Check(backend_.PagedAttention({.q = qkv_.data(),
                                   .q_stride = kQkv,
                                   .out = attended_.data(),
                                   .num_q_heads = kQHeads,
                                   .batch = &batch_,
                                   .cache = layers_[i].cache,
                                   .scale = 0.125f}));
  }
  void Silu() {
    Check(backend_.SiluMul({.gate_up = gate_up_.data(),
                            .y = activated_.data(),
                            .rows = batch_.num_rows,
                            .width = kIntermediate}));
  }
  void Sample() {
    Check(backend_.Sample({.logits = logits_.data(),
                           .logits_stride = kVocab,
                           .rows = batch_.num_seqs,
                           .vocab_size = kVocab,
                           .row_params = sample_rows_.data(),
                           .host_row_params = sample_rows_.data(),
                           .tokens = sampled_.data()}));
  }
  void Linears(int i) {
    Qkv(i);
    O(i);
    GateUp(i);
    Down(i);
  }
  void Step() {
    Check(backend_.PrepareAttention(batch_));
    Embed();
    for (int i = 0; i < kLayers; ++i) {
      Norm();
      Qkv(i);
      Rope(i);
      Attention(i);
      O(i);
      Norm();
      GateUp(i);
      Silu();
      Down(i);
    }
    Norm();
    Head();
    Sample();
  }

  double WeightBytes() const { return static_cast<double>(weight_bytes_); }
  double LayerParameters() const {
    return kHidden * (kQkv + kQHeads * kHeadDim + 3.0 * kIntermediate);
  }

 private:
  LinearWeight Weight(int64_t n, int64_t k) {
    LinearWeight weight = {.format = backend_.PreferredFormat(DType::kBFloat16, n, k),
                           .dtype = DType::kBFloat16,
                           .n = n,
                           .k = k};
    weights_.push_back(
        std::move(backend_.Allocate(backend_.LinearBytes(weight), "weight")).value());
    weight.data = weights_.back().data();
    weight_bytes_ += backend_.LinearBytes(weight);
    Check(backend_.FillNormal({.weight = weight, .seed = weights_.size()}));
    return weight;
  }

  Backend& backend_;
  std::vector<Buffer> weights_;
  size_t weight_bytes_ = 0;
  std::vector<Layer> layers_;
  LinearWeight head_;
  Buffer cache_;
  AttentionBatch batch_;
  std::vector<int32_t> offsets_, contexts_, tables_, positions_, slots_, tokens_, last_rows_,
      sampled_;
  std::vector<float> cos_sin_, norm_, x_, normed_, qkv_, attended_, gate_up_, activated_, gathered_,
      logits_;
  std::vector<kernels::SampleRow> sample_rows_;
};

// One line: a subject against the time that its floor allows.
class Report {
 public:
  Report(int num_threads, size_t probe_bytes)
      : num_threads_(num_threads), read_(num_threads, probe_bytes) {}

  // `bytes` at the measured read bandwidth.
  double Bytes(const char* name, double bytes, const std::function<void()>& subject) {
    double rate = 0;
    double seconds = 1e9;
    for (int i = 0; i < kPasses; ++i) {
      rate = std::max(rate, read_.Measure());
      seconds = std::min(seconds, SecondsOf(subject));
    }
    best_rate_ = std::max(best_rate_, rate);
    Print(name, bytes / best_rate_, seconds);
    return seconds;
  }
  // `flops` at the measured peak of `instruction`.
  double Flops(const char* name,
               double flops,
               Instruction instruction,
               const std::function<void()>& subject) {
    double rate = 0;
    double seconds = 1e9;
    for (int i = 0; i < kPasses; ++i) {
      rate = std::max(rate, MeasurePeakFlops(instruction, num_threads_));
      seconds = std::min(seconds, SecondsOf(subject));
    }
    Print(name, flops / rate, seconds);
    return seconds;
  }
  // No floor: the time alone, of one of `count` calls.
  double Time(const char* name, int count, const std::function<void()>& subject) {
    double seconds = 1e9;
    for (int i = 0; i < kPasses; ++i) {
      seconds = std::min(seconds, SecondsOf([&] {
                                    for (int j = 0; j < count; ++j) subject();
                                  }) / count);
    }
    std::printf("%-44s %31.1f us\n", name, seconds * 1e6);
    return seconds;
  }

  double best_rate() const { return best_rate_; }

 private:
  static void Print(const char* name, double floor_seconds, double seconds) {
    std::printf("%-44s floor %9.1f us  %9.1f us  %5.1f %%\n",
                name,
                floor_seconds * 1e6,
                seconds * 1e6,
                100 * floor_seconds / seconds);
    std::fflush(stdout);
  }

  int num_threads_;
  ReadProbe read_;
  double best_rate_ = 0;
};

void BenchSampling(Backend& backend, Report& report) {
  constexpr int32_t kLargeVocab = 128256;
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(kLargeVocab);
  for (float& v : logits) v = normal(generator);
  std::vector<int32_t> token(1), rank(1), top_ids(20);
  std::vector<float> logprob(1), top_logprobs(20);
  const auto bench = [&](const char* name, kernels::SampleRow row) {
    report.Time(name, 20, [&] {
      Check(backend.Sample({.logits = logits.data(),
                            .logits_stride = kLargeVocab,
                            .rows = 1,
                            .vocab_size = kLargeVocab,
                            .row_params = &row,
                            .host_row_params = &row,
                            .tokens = token.data(),
                            .logprobs = logprob.data(),
                            .ranks = rank.data(),
                            .top_ids = top_ids.data(),
                            .top_logprobs = top_logprobs.data(),
                            .max_top = 20}));
      ++row.position;
    });
  };
  bench("sample 1 x 128256 greedy", {.temperature = 0});
  bench("sample 1 x 128256 temperature", {});
  bench("sample 1 x 128256 top_k 50", {.top_k = 50});
  bench("sample 1 x 128256 top_p 0.9", {.top_p = 0.9f});
  bench("sample 1 x 128256 top_k 50 top_p 0.9", {.top_p = 0.9f, .top_k = 50});
  bench("sample 1 x 128256 min_p 0.05", {.min_p = 0.05f});
  bench("sample 1 x 128256 typical_p 0.9", {.typical_p = 0.9f});
  bench("sample 1 x 128256 greedy, logprobs 20", {.temperature = 0, .num_logprobs = 20});

  // A greedy row costs the same whoever is beside it: sixteen of which one is another's take as
  // long as fifteen and that one alone.
  constexpr int kRows = 16;
  std::vector<float> many;
  for (int i = 0; i < kRows; ++i) many.insert(many.end(), logits.begin(), logits.end());
  std::vector<int32_t> tokens(kRows);
  const auto bench_rows = [&](const char* name, std::vector<kernels::SampleRow> rows) {
    report.Time(name, 20, [&] {
      Check(backend.Sample({.logits = many.data(),
                            .logits_stride = kLargeVocab,
                            .rows = static_cast<int64_t>(rows.size()),
                            .vocab_size = kLargeVocab,
                            .row_params = rows.data(),
                            .host_row_params = rows.data(),
                            .tokens = tokens.data()}));
    });
  };
  std::vector<kernels::SampleRow> rows(kRows - 1, {.temperature = 0});
  bench_rows("sample 15 x 128256 greedy", rows);
  rows.push_back({.top_p = 0.9f});
  bench_rows("sample 16 x 128256 greedy but one of top_p 0.9", rows);
}

void Run(int num_threads, const std::string& isa) {
  auto opened = kernels::OpenBackend("cpu", {.cpu_threads = num_threads, .cpu_isa = isa});
  Check(opened.status());
  Backend& backend = **opened;
  std::printf("%s\n", backend.Info()->name.c_str());
  Model model(backend);
  Report report(num_threads, size_t{2} << 30);
  const Instruction instruction =
      HasInstruction(Instruction::kBf16Dot) ? Instruction::kBf16Dot : Instruction::kFloat32Fma;

  model.SetBatch(1, 1, 100);
  report.Bytes("linears of 30 layers and head, batch 1", model.WeightBytes(), [&] {
    for (int i = 0; i < kLayers; ++i) model.Linears(i);
    model.Head();
  });
  const double one =
      report.Bytes("step, batch 1, context 100", model.WeightBytes(), [&] { model.Step(); });
  model.SetBatch(8, 1, 100);
  const double eight =
      report.Bytes("step, batch 8, context 100", model.WeightBytes(), [&] { model.Step(); });
  std::printf("%-44s %28.2f times\n", "batch 8 / batch 1", eight / one);
  report.Bytes("linears of 30 layers and head, batch 8", model.WeightBytes(), [&] {
    for (int i = 0; i < kLayers; ++i) model.Linears(i);
    model.Head();
  });
  const double kv_row_bytes = 2.0 * kKvHeads * kHeadDim * 2;
  for (const int32_t context : {100, 512, 4096}) {
    for (const int32_t seqs : {1, 8}) {
      model.SetBatch(seqs, 1, context);
      const std::string name = "attention, 30 layers, batch " + std::to_string(seqs) + " context " +
                               std::to_string(context);
      report.Bytes(name.c_str(), kLayers * kv_row_bytes * seqs * context, [&] {
        for (int i = 0; i < kLayers; ++i) model.Attention(i);
      });
    }
  }

  constexpr int32_t kPrompt = 512;
  model.SetBatch(1, kPrompt, kPrompt);
  const double linear_flops = 2.0 * kPrompt * model.LayerParameters();
  // Scores and values of the lower triangle.
  const double attention_flops = 4.0 * kQHeads * kHeadDim * kPrompt * (kPrompt + 1) / 2;
  const auto layer_op =
      [&](const char* name, double parameters, const std::function<void(int)>& op) {
        report.Flops(name, kLayers * 2.0 * kPrompt * parameters, instruction, [&] {
          for (int i = 0; i < kLayers; ++i) op(i);
        });
      };
  layer_op("qkv, 512 rows, 30 layers", kHidden * kQkv, [&](int i) { model.Qkv(i); });
  layer_op("o, 512 rows, 30 layers", kHidden * kHidden, [&](int i) { model.O(i); });
  layer_op(
      "gate_up, 512 rows, 30 layers", kHidden * 2 * kIntermediate, [&](int i) { model.GateUp(i); });
  layer_op("down, 512 rows, 30 layers", kHidden * kIntermediate, [&](int i) { model.Down(i); });
  report.Flops("attention, 512 rows, 30 layers", kLayers * attention_flops, instruction, [&] {
    for (int i = 0; i < kLayers; ++i) model.Attention(i);
  });
  report.Time("rms_norm, 512 rows", 10, [&] { model.Norm(); });
  report.Time("rope_kv_write, 512 rows", 10, [&] { model.Rope(0); });
  report.Time("silu_mul, 512 rows", 10, [&] { model.Silu(); });
  report.Time("embedding, 512 rows", 10, [&] { model.Embed(); });
  report.Flops("step, prefill of 512 tokens",
               kLayers * (linear_flops + attention_flops) + 2.0 * kHidden * kVocab,
               instruction,
               [&] { model.Step(); });
  BenchSampling(backend, report);
  std::printf("%-44s %26.2f GB/s\n", "read bandwidth, best pass", report.best_rate() / 1e9);
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  pagoda::bench::Run(argc > 1 ? std::atoi(argv[1]) : 2, argc > 2 ? argv[2] : "auto");
  return 0;
}
