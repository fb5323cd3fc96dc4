// Collectives of groups of devices, by size: `cuda_group_bench [--json=FILE] [--ranks=N]`. Each
// rank is a process with a GPU of its own; on a machine with one GPU, ranks are streams of one
// process, and NCCL, which refuses that, is left out. Times are of one of kCalls calls in a graph,
// each on what the ranks gave before it, the slowest rank's.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/kernels/cuda/group_transport.h"

namespace pagoda::kernels::cuda::test {
namespace {

constexpr int kCalls = 40;
constexpr int kReplays = 15;
constexpr size_t kBenchBytes = size_t{64} << 20;

struct Setting {
  std::string json;
  int num_ranks = 2;
};

class GroupBench {
 public:
  explicit GroupBench(Rank& rank) : rank_(rank) {}
  absl::Status Run(const Setting& setting, bool has_nccl);

 private:
  using Enqueue = std::function<absl::Status()>;

  absl::StatusOr<double> TimeUs(DeviceGroup& group, const Enqueue& enqueue);
  absl::Status Add(const std::string& what,
                   const std::string& how,
                   int64_t num_bytes,
                   DeviceGroup& group,
                   const Enqueue& enqueue);
  absl::Status Reductions(const std::string& how, DeviceGroup& group);
  absl::Status Norms(const std::string& how, DeviceGroup& group);
  absl::Status Gathers(const std::string& how, DeviceGroup& group);

  Rank& rank_;
  char *x_ = nullptr, *y_ = nullptr, *residual_ = nullptr;
  float* weight_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<nlohmann::json> rows_;
};

absl::StatusOr<double> GroupBench::TimeUs(DeviceGroup& group, const Enqueue& enqueue) {
  cudaStream_t const stream = rank_.context.stream;
  PAGODA_RETURN_IF_ERROR(enqueue());
  PAGODA_RETURN_IF_ERROR(AwaitGroup(rank_, group));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  PAGODA_RETURN_IF_ERROR(
      Cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture"));
  absl::Status recorded = absl::OkStatus();
  for (int i = 0; i < kCalls; ++i) recorded.Update(enqueue());
  PAGODA_RETURN_IF_ERROR(Cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  PAGODA_RETURN_IF_ERROR(recorded);
  PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate"));
  PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphUpload(exec, stream), "cudaGraphUpload"));
  PAGODA_RETURN_IF_ERROR(Cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  rank_.All(true);
  std::vector<float> times;
  for (int i = 0; i < kReplays + 2; ++i) {
    float ms = 0.0f;
    // One replay ahead brings the ranks together; it is not counted.
    PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch"));
    PAGODA_RETURN_IF_ERROR(Cuda(cudaEventRecord(begin_, stream), "cudaEventRecord"));
    PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch"));
    PAGODA_RETURN_IF_ERROR(Cuda(cudaEventRecord(end_, stream), "cudaEventRecord"));
    PAGODA_RETURN_IF_ERROR(AwaitGroup(rank_, group));
    PAGODA_RETURN_IF_ERROR(Cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime"));
    if (i >= 2) times.push_back(ms);
  }
  rank_.All(true);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  const double own = times[times.size() / 2] * 1e3 / kCalls;
  std::vector<double> all(rank_.num_ranks);
  PAGODA_RETURN_IF_ERROR(rank_.host->AllGather(&own, all.data(), sizeof(own)));
  return *std::max_element(all.begin(), all.end());
}

absl::Status GroupBench::Add(const std::string& what,
                             const std::string& how,
                             int64_t num_bytes,
                             DeviceGroup& group,
                             const Enqueue& enqueue) {
  PAGODA_ASSIGN_OR_RETURN(const double us, TimeUs(group, enqueue));
  if (rank_.rank != 0) return absl::OkStatus();
  std::printf("%-28s %-16s %10lld bytes %9.2f us\n",
              what.c_str(),
              how.c_str(),
              static_cast<long long>(num_bytes),
              us);
  std::fflush(stdout);
  rows_.push_back({{"op", what}, {"how", how}, {"bytes", num_bytes}, {"us", us}});
  return absl::OkStatus();
}

absl::Status GroupBench::Reductions(const std::string& how, DeviceGroup& group) {
  for (int64_t num_bytes = 2048; num_bytes <= int64_t{16} << 20; num_bytes *= 2) {
    PAGODA_RETURN_IF_ERROR(Add("all_reduce", how, num_bytes, group, [&] {
      return group.AllReduceSum(
          {.x = x_, .y = y_, .count = num_bytes / 2, .dtype = DType::kBFloat16});
    }));
  }
  return absl::OkStatus();
}

absl::Status GroupBench::Norms(const std::string& how, DeviceGroup& group) {
  for (const int64_t width : {4096, 8192}) {
    for (const int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
      PAGODA_RETURN_IF_ERROR(Add(
          absl::StrCat("all_reduce_norm/", rows, "x", width), how, rows * width * 2, group, [&] {
            return group.AllReduceNorm({.x = x_,
                                        .residual = residual_,
                                        .sum = residual_,
                                        .weight = weight_,
                                        .y = y_,
                                        .rows = rows,
                                        .width = width,
                                        .dtype = DType::kBFloat16});
          }));
    }
  }
  return absl::OkStatus();
}

// Logits of 128,256 tokens in float32.
absl::Status GroupBench::Gathers(const std::string& how, DeviceGroup& group) {
  const int64_t row_bytes = 128256 * 4 / rank_.num_ranks / 16 * 16;
  for (const int64_t rows : {1, 8, 64}) {
    PAGODA_RETURN_IF_ERROR(
        Add(absl::StrCat("all_gather/", rows, "_rows"), how, rows * row_bytes, group, [&] {
          return group.AllGather({.x = x_,
                                  .y = y_,
                                  .rows = rows,
                                  .row_bytes = row_bytes,
                                  .y_row_bytes = row_bytes * rank_.num_ranks,
                                  .y_stride_bytes = row_bytes * rank_.num_ranks});
        }));
  }
  return absl::OkStatus();
}

absl::Status GroupBench::Run(const Setting& setting, bool has_nccl) {
  for (char** array : {&x_, &y_, &residual_}) {
    PAGODA_RETURN_IF_ERROR(
        Cuda(cudaMalloc(reinterpret_cast<void**>(array), kBenchBytes), "cudaMalloc"));
    // Small numbers, none of them zero.
    PAGODA_RETURN_IF_ERROR(Cuda(cudaMemset(*array, 0x3c, kBenchBytes), "cudaMemset"));
  }
  PAGODA_RETURN_IF_ERROR(
      Cuda(cudaMalloc(reinterpret_cast<void**>(&weight_), 32768 * 4), "cudaMalloc"));
  PAGODA_RETURN_IF_ERROR(Cuda(cudaMemset(weight_, 0x3c, 32768 * 4), "cudaMemset"));
  PAGODA_RETURN_IF_ERROR(Cuda(cudaEventCreate(&begin_), "cudaEventCreate"));
  PAGODA_RETURN_IF_ERROR(Cuda(cudaEventCreate(&end_), "cudaEventCreate"));
  for (const auto& [how, shots] :
       {std::pair{"one_shot", Shots::kOne}, std::pair{"two_shot", Shots::kTwo}}) {
    PAGODA_ASSIGN_OR_RETURN(const auto group, MakeGroup(Transport::kIpc, rank_, shots));
    PAGODA_RETURN_IF_ERROR(Norms(how, *group));
    PAGODA_RETURN_IF_ERROR(Reductions(how, *group));
    if (shots == Shots::kOne) PAGODA_RETURN_IF_ERROR(Gathers("ipc", *group));
    rank_.All(true);
  }
  if (has_nccl) {
    PAGODA_ASSIGN_OR_RETURN(const auto group, MakeGroup(Transport::kNccl, rank_));
    PAGODA_RETURN_IF_ERROR(Reductions("nccl", *group));
    PAGODA_RETURN_IF_ERROR(Gathers("nccl", *group));
    rank_.All(true);
  }
  if (rank_.rank != 0 || setting.json.empty()) return absl::OkStatus();
  std::ofstream(setting.json)
      << nlohmann::json{{"device", rank_.context.name},
                        {"ranks", rank_.num_ranks},
                        {"ranks_are", has_nccl ? "processes, a GPU each" : "streams of one GPU"},
                        {"calls_in_graph", kCalls},
                        {"rows", rows_}}
             .dump(1)
      << '\n';
  return absl::OkStatus();
}

int RunBench(int argc, char** argv) {
  Setting setting;
  const int num_devices = NumDevices();
  setting.num_ranks = std::max(2, num_devices);
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (absl::ConsumePrefix(&arg, "--json=")) {
      setting.json = std::string(arg);
    } else if (absl::ConsumePrefix(&arg, "--ranks=")) {
      setting.num_ranks = std::atoi(std::string(arg).c_str());
    } else {
      std::printf("error: unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  if (num_devices == 0 || setting.num_ranks < 2 || setting.num_ranks > kMaxRanks) {
    std::printf("error: %d GPUs, %d ranks; expected a GPU and 2 to %d ranks\n",
                num_devices,
                setting.num_ranks,
                kMaxRanks);
    return 2;
  }
  const bool own_gpus = num_devices >= setting.num_ranks;
  const std::string wrong =
      RunRanks({.kind = own_gpus ? RankKind::kProcesses : RankKind::kThreads,
                .num_ranks = setting.num_ranks,
                .num_devices = own_gpus ? setting.num_ranks : 1,
                .timeout_seconds = 200},
               [&](Rank& rank) { return GroupBench(rank).Run(setting, own_gpus); });
  if (!wrong.empty()) std::printf("error: %s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::kernels::cuda::test

int main(int argc, char** argv) { return pagoda::kernels::cuda::test::RunBench(argc, argv); }
