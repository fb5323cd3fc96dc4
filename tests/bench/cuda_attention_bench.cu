// Attention kernels on one GPU: decode against the bandwidth of reading K and V once, prefill in
// TFLOP/s, the classic kernels beside them. Every figure is the median over replays of a graph of
// launches that rotate among batches, so that no launch finds its keys in the L2 cache; blocks are
// permuted at random and none is shared.
//
// Usage: cuda_attention_bench [part of a case's name ...]; PAGODA_BENCH_JSON names a file that gets
// one object a line.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/attention/decode_launch.cuh"
#include "kernels/cuda/attention/paged_attention_classic.h"
#include "tests/kernels/cuda/case_runner.h"
#include "tests/kernels/cuda/paged_data.cuh"

namespace pagoda::kernels::cuda::test {
namespace {

using Sequences = PagedData::Sequences;
using Launcher = std::function<absl::Status(int set, cudaStream_t stream)>;

// Read-only stream of this GPU, 16-byte loads; the value of performance.md.
constexpr double kReadBytesPerSecond = 4.56e12;

struct Timing {
  double median_us = 0;  // of one launch
  double best_us = 0;
};

// A graph of `launches` launches over `sets` batches in turn, replayed.
Timing TimeGraph(const Launcher& launch, int sets, int launches, int replays) {
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < launches; ++i) {
    const absl::Status status = launch(i % sets, stream);
    if (!status.ok()) {
      std::printf("launch: %s\n", status.ToString().c_str());
      std::_Exit(4);
    }
  }
  cudaGraph_t graph;
  CheckCuda(cudaStreamEndCapture(stream, &graph), "end capture");
  cudaGraphExec_t exec;
  CheckCuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  CheckCuda(cudaEventCreate(&begin), "event");
  CheckCuda(cudaEventCreate(&end), "event");
  for (int i = 0; i < 2; ++i) CheckCuda(cudaGraphLaunch(exec, stream), "warm-up");
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    CheckCuda(cudaEventRecord(begin, stream), "record");
    CheckCuda(cudaGraphLaunch(exec, stream), "launch");
    CheckCuda(cudaEventRecord(end, stream), "record");
    CheckCuda(cudaEventSynchronize(end), "replay");
    float ms = 0;
    CheckCuda(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    times.push_back(ms * 1e3 / launches);
  }
  std::sort(times.begin(), times.end());
  return {.median_us = times[times.size() / 2], .best_us = times.front()};
}

void WriteJson(const std::string& line) {
  const char* path = std::getenv("PAGODA_BENCH_JSON");
  if (path == nullptr) return;
  if (FILE* file = std::fopen(path, "a"); file != nullptr) {
    std::fprintf(file, "%s\n", line.c_str());
    std::fclose(file);
  }
}

std::string ReportBytes(const std::string& name, double bytes, const Timing& t) {
  const double floor_us = bytes / kReadBytesPerSecond * 1e6;
  WriteJson(absl::StrFormat(
      R"({"case":"%s","bytes":%.0f,"floor_us":%.3f,"median_us":%.3f,"best_us":%.3f,"tb_per_s":%.4f,"ratio":%.4f})",
      name,
      bytes,
      floor_us,
      t.median_us,
      t.best_us,
      bytes / t.median_us * 1e-6,
      t.median_us / floor_us));
  return absl::StrFormat(
      " %9.1f MB  floor %8.2f us  median %8.2f us  best %8.2f us  %.3f TB/s  %.3f x floor",
      bytes * 1e-6,
      floor_us,
      t.median_us,
      t.best_us,
      bytes / t.median_us * 1e-6,
      t.median_us / floor_us);
}

std::string ReportFlops(const std::string& name, double flops, const Timing& t) {
  WriteJson(absl::StrFormat(
      R"({"case":"%s","flops":%.0f,"median_us":%.3f,"best_us":%.3f,"tflop_per_s":%.1f})",
      name,
      flops,
      t.median_us,
      t.best_us,
      flops / t.median_us * 1e-6));
  return absl::StrFormat(" %7.3f TFLOP  median %9.2f us  best %9.2f us  %.1f TFLOP/s (best %.1f)",
                         flops * 1e-12,
                         t.median_us,
                         t.best_us,
                         flops / t.median_us * 1e-6,
                         flops / t.best_us * 1e-6);
}

using Batches = std::vector<std::unique_ptr<PagedData>>;

Batches MakeBatches(const PagedShape& shape, const Sequences& sequences, int sets) {
  Batches batches;
  for (int i = 0; i < sets; ++i)
    batches.push_back(std::make_unique<PagedData>(shape, sequences, 100 + i));
  return batches;
}

// As many batches as put 256 MB between two uses of one.
int NumSets(const PagedShape& shape, const Sequences& sequences) {
  double bytes = 0;
  for (const auto& [rows, context] : sequences)
    bytes += 4.0 * context * shape.num_kv_heads * shape.head_dim;
  return std::clamp(static_cast<int>(256e6 / bytes) + 1, 2, 32);
}

struct DecodeOptions {
  bool programmatic = true;
  int32_t min_tiles_per_split = 2;
  int32_t ctas_per_multiprocessor = 0;  // 0: as production
  absl::Status (*launch)(const AttentionLaunch&, cudaStream_t) = LaunchPagedAttentionDecode;
};

std::string BenchDecode(const std::string& name,
                        const PagedShape& shape,
                        const Sequences& sequences,
                        const DecodeOptions& options,
                        std::string* note) {
  const int sets = NumSets(shape, sequences);
  Batches batches = MakeBatches(shape, sequences, sets);
  for (auto& batch : batches) {
    if (options.ctas_per_multiprocessor > 0) {
      batch->SetDecodeGrid(batch->plan_shape().prefill_grid * options.ctas_per_multiprocessor);
    }
    if (absl::Status s = batch->Plan(std::nullopt, options.min_tiles_per_split); !s.ok())
      return s.ToString();
  }
  const Timing t = TimeGraph(
      [&](int set, cudaStream_t stream) {
        AttentionLaunch launch = batches[set]->Launch();
        launch.programmatic = options.programmatic;
        return options.launch(launch, stream);
      },
      sets,
      std::max(2 * sets, 10),
      15);
  *note = ReportBytes(name, batches[0]->KvBytes(), t);
  return "";
}

std::string BenchClassic(const std::string& name,
                         PagedShape shape,
                         const Sequences& sequences,
                         int version,
                         std::string* note) {
  shape.block_size = 16;  // what it was made for
  const int sets = NumSets(shape, sequences);
  Batches batches = MakeBatches(shape, sequences, sets);
  int32_t longest = 0;
  for (const auto& [rows, context] : sequences) longest = std::max(longest, context);
  DeviceBuffer workspace(
      ClassicWorkspaceBytes(sequences.size(), shape.num_q_heads, shape.head_dim, longest));
  const Timing t = TimeGraph(
      [&](int set, cudaStream_t stream) {
        const AttentionLaunch launch = batches[set]->Launch();
        // The engine's pool taken as the classic one: same bytes, other order; only the time is
        // looked at.
        char* pool = static_cast<char*>(launch.params->cache.data);
        const ClassicAttentionParams params = {
            .out = launch.params->out,
            .q = launch.params->q,
            .q_stride = launch.params->q_stride,
            .num_seqs = static_cast<int32_t>(sequences.size()),
            .num_q_heads = shape.num_q_heads,
            .cache = {.k = pool,
                      .v = pool + batches[set]->pool().bytes() / 2,
                      .num_blocks = launch.params->cache.num_blocks,
                      .block_size = shape.block_size,
                      .num_kv_heads = shape.num_kv_heads,
                      .head_dim = shape.head_dim,
                      .dtype = shape.dtype},
            .block_tables = launch.params->batch->block_tables,
            .block_table_stride = batches[set]->table_stride(),
            .context_lens = launch.params->batch->context_lens,
            .max_context_len = longest,
            .scale = batches[set]->scale()};
        return version == 1 ? LaunchPagedAttentionClassicV1(params, stream)
                            : LaunchPagedAttentionClassicV2(params, workspace.data(), stream);
      },
      sets,
      std::max(sets, 4),
      5);
  *note = ReportBytes(name, batches[0]->KvBytes(), t);
  return "";
}

std::string BenchPrefill(const std::string& name,
                         const PagedShape& shape,
                         const Sequences& sequences,
                         PrefillKernel kernel,
                         std::string* note) {
  const int sets = std::min(4, NumSets(shape, sequences));
  Batches batches = MakeBatches(shape, sequences, sets);
  double flops = 0;
  for (const auto& [rows, context] : sequences) {
    // Causal: 2 S^2 H d for a whole prompt; in general 4 H d for each pair of a row and a key it
    // sees.
    const double pairs = double(rows) * (context - rows) + double(rows) * rows / 2;
    flops += 4.0 * shape.num_q_heads * shape.head_dim * pairs;
  }
  for (auto& batch : batches) {
    if (absl::Status s = batch->Plan(0); !s.ok()) return s.ToString();
  }
  const Timing t = TimeGraph(
      [&](int set, cudaStream_t stream) {
        AttentionLaunch launch = batches[set]->Launch();
        launch.prefill_kernel = kernel;
        return LaunchPagedAttentionPrefill(launch, stream);
      },
      sets,
      4,
      9);
  *note = ReportFlops(name, flops, t);
  return "";
}

__global__ void __launch_bounds__(512)
    ReadKernel(const uint4* data, int64_t count, uint32_t* sink) {
  constexpr int kInFlight = 4;
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += kInFlight * stride) {
    uint4 x[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      x[j] = i + j * stride < count ? __ldcs(data + i + j * stride) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) sum += x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
  }
  if (sum == 0x12345677) *sink = sum;
}

std::string BenchRead(const std::string& name, std::string* note) {
  constexpr size_t kBytes = size_t{1} << 30;
  std::vector<DeviceBuffer> buffers;
  for (int i = 0; i < 2; ++i) {
    buffers.emplace_back(kBytes);
    buffers.back().Fill(0x3a + i);
  }
  DeviceBuffer sink(16);
  const Timing t = TimeGraph(
      [&](int set, cudaStream_t stream) {
        ReadKernel<<<132 * 4, 512, 0, stream>>>(
            buffers[set].as<uint4>(), kBytes / 16, sink.as<uint32_t>());
        return absl::OkStatus();
      },
      2,
      10,
      15);
  *note = ReportBytes(name, kBytes, t);
  return "";
}

std::string BenchRope(const std::string& name, int32_t rows, std::string* note) {
  PagedData data({}, Sequences(rows, {1, 64}), 3);
  const int64_t stride = (32 + 16) * 128;
  DeviceBuffer qkv(rows * stride * 2), table(int64_t{8192} * 128 * 4);
  qkv.Fill(0x3c);
  table.Fill(0x3c);
  std::vector<int32_t> slots(rows), positions(rows, 63);
  for (int i = 0; i < rows; ++i) slots[i] = data.tables()[i * data.table_stride()] * 64 + 63;
  DeviceBuffer device_slots = DeviceBuffer::From(slots),
               device_positions = DeviceBuffer::From(positions);
  const AttentionBatch batch = {.num_seqs = rows,
                                .num_rows = rows,
                                .positions = device_positions.as<int32_t>(),
                                .kv_slots = device_slots.as<int32_t>()};
  const Timing t = TimeGraph(
      [&](int, cudaStream_t stream) {
        return LaunchRopeKvWrite({.qkv = qkv.data(),
                                  .qkv_stride = stride,
                                  .cos_sin = table.as<float>(),
                                  .max_positions = 8192,
                                  .rotary_dim = 128,
                                  .num_q_heads = 32,
                                  .batch = &batch,
                                  .cache = data.cache(),
                                  .dtype = DType::kBFloat16},
                                 true,
                                 stream);
      },
      1,
      20,
      15);
  *note = ReportBytes(name, rows * (stride * 2 + 40 * 128 * 2 + 16 * 128 * 2), t);
  return "";
}

template <int kStages, int kCtas>
absl::Status LaunchVariant(const AttentionLaunch& launch, cudaStream_t stream) {
  return LaunchDecode<DecodeTraits<__nv_bfloat16, 128, 1, kStages, kCtas, false>>(launch, stream);
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  const PagedShape llama = {};
  const auto repeat = [](int count, int context) { return Sequences(count, {1, context}); };
  Sequences skewed = repeat(31, 4096);
  skewed.insert(skewed.begin(), {1, 131072});
  const auto decode = [&](const std::string& name,
                          const PagedShape& shape,
                          const Sequences& sequences,
                          const DecodeOptions& options = {}) {
    cases.push_back({name, [=](std::string* note) {
                       return BenchDecode(name, shape, sequences, options, note);
                     }});
  };
  const auto prefill = [&](const std::string& name,
                           const PagedShape& shape,
                           const Sequences& sequences,
                           PrefillKernel kernel) {
    cases.push_back({name, [=](std::string* note) {
                       return BenchPrefill(name, shape, sequences, kernel, note);
                     }});
  };
  const auto classic = [&](const std::string& name, const Sequences& sequences, int version) {
    cases.push_back({name, [=](std::string* note) {
                       return BenchClassic(name, llama, sequences, version, note);
                     }});
  };

  cases.push_back({"read/1GB", [](std::string* note) { return BenchRead("read/1GB", note); }});
  decode("a/decode_64x4k", llama, repeat(64, 4096));
  decode("b/decode_1x8k", llama, repeat(1, 8192));
  decode("b/decode_1x128k+31x4k", llama, skewed);
  for (const int s : {8192, 16384}) {
    const std::string size = absl::StrCat(s / 1024, "k");
    prefill(absl::StrCat("c/prefill_wgmma_", size), llama, {{s, s}}, PrefillKernel::kWgmma);
    prefill(absl::StrCat("c/prefill_mma_", size), llama, {{s, s}}, PrefillKernel::kMma);
  }
  classic("classic/v1_64x4k", repeat(64, 4096), 1);
  classic("classic/v2_64x4k", repeat(64, 4096), 2);
  classic("classic/v2_1x8k", repeat(1, 8192), 2);
  classic("classic/v2_1x128k+31x4k", skewed, 2);

  // Variants: thread blocks a multiprocessor, stages, dependent launch, shortest piece.
  decode("variant/stream_64x4k", llama, repeat(64, 4096), {.programmatic = false});
  decode("variant/stream_1x8k", llama, repeat(1, 8192), {.programmatic = false});
  decode("variant/6stages_1cta_64x4k",
         llama,
         repeat(64, 4096),
         {.ctas_per_multiprocessor = 1, .launch = LaunchVariant<6, 1>});
  decode("variant/6stages_1cta_1x8k",
         llama,
         repeat(1, 8192),
         {.ctas_per_multiprocessor = 1, .launch = LaunchVariant<6, 1>});
  decode("variant/2stages_2ctas_64x4k", llama, repeat(64, 4096), {.launch = LaunchVariant<2, 2>});
  decode("variant/3stages_1cta_64x4k",
         llama,
         repeat(64, 4096),
         {.ctas_per_multiprocessor = 1, .launch = LaunchVariant<3, 1>});
  for (const int tiles : {1, 4, 8}) {
    decode(absl::StrCat("variant/min", tiles, "_1x8k"),
           llama,
           repeat(1, 8192),
           {.min_tiles_per_split = tiles});
  }

  // Other shapes.
  decode("more/decode_32x4k", llama, repeat(32, 4096));
  decode("more/decode_64x1k", llama, repeat(64, 1024));
  decode("more/decode_256x1k", llama, repeat(256, 1024));
  decode("more/decode_1x1k", llama, repeat(1, 1024));
  decode("more/decode_1x8k_64x8", {.num_q_heads = 64}, repeat(1, 8192));
  decode("more/decode_64x4k_b16", {.block_size = 16}, repeat(64, 4096));
  decode("more/decode_64x4k_d64", {.head_dim = 64}, repeat(64, 4096));
  decode("more/decode_64x4k_d256",
         {.head_dim = 256, .num_q_heads = 16, .num_kv_heads = 8},
         repeat(64, 4096));
  decode("more/decode_64x4k_group16", {.num_kv_heads = 2}, repeat(64, 4096));
  decode("more/decode_64x4k_mha", {.num_kv_heads = 32}, repeat(32, 4096));
  prefill("more/prefill_8x1k", llama, Sequences(8, {1024, 1024}), PrefillKernel::kAuto);
  prefill("more/prefill_2k_of_16k", llama, {{2048, 16384}}, PrefillKernel::kAuto);
  prefill("more/prefill_d64_8k", {.head_dim = 64}, {{8192, 8192}}, PrefillKernel::kAuto);
  prefill("more/prefill_d256_8k",
          {.head_dim = 256, .num_q_heads = 16},
          {{8192, 8192}},
          PrefillKernel::kAuto);
  for (const int rows : {1, 64, 8192}) {
    const std::string name = absl::StrCat("more/rope_", rows);
    cases.push_back({name, [=](std::string* note) { return BenchRope(name, rows, note); }});
  }
  return cases;
}

}  // namespace
}  // namespace pagoda::kernels::cuda::test

int main(int argc, char** argv) {
  return pagoda::kernels::cuda::test::RunCases(pagoda::kernels::cuda::test::AllCases(), argc, argv);
}
