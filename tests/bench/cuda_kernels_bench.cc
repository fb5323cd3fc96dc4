// Kernels of the cuda backend beside their floors: `cuda_kernels_bench [--json=FILE] [--m=ROWS]
// [part of a section's name ...]`. Sections: bandwidth, sample, rows, step (the products of a
// decode step of the Llama-3.1-8B shape in one graph), plans (every plan of every product,
// measured). --m: steps of so many rows only, with every plan.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "nlohmann/json.hpp"
#include "tests/bench/cuda_read_bandwidth.h"

namespace pagoda::kernels::cuda {
namespace {

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

// Prints a line a measurement, keeps them for the JSON file.
class Report {
 public:
  void Add(const std::string& name, double us, double floor_us, const std::string& note = "") {
    std::printf("%-58s %9.2f us  floor %9.2f  x%.3f  %s\n",
                name.c_str(),
                us,
                floor_us,
                floor_us > 0 ? us / floor_us : 0.0,
                note.c_str());
    std::fflush(stdout);
    rows_.push_back({{"name", name}, {"us", us}, {"floor_us", floor_us}, {"note", note}});
  }
  void Write(const std::string& path) const {
    if (!path.empty()) std::ofstream(path) << nlohmann::json(rows_).dump(1) << '\n';
  }

 private:
  std::vector<nlohmann::json> rows_;
};

class Bench {
 public:
  explicit Bench(CudaBackend& backend) : backend_(backend) {
    Must(CudaStatus(cudaEventCreate(&begin_), "cudaEventCreate", "bench"));
    Must(CudaStatus(cudaEventCreate(&end_), "cudaEventCreate", "bench"));
    sink_ = Must(backend.Allocate(256, "bench"));
  }

  CudaBackend& backend() { return backend_; }
  double bandwidth() const { return bandwidth_; }
  double FloorUs(double bytes) const { return bytes / bandwidth_ * 1e6; }

  // Median of `runs` timings of what `enqueue` puts on the stream, after two that are not counted.
  double TimeUs(int runs, const std::function<absl::Status()>& enqueue) {
    std::vector<float> times;
    for (int i = 0; i < runs + 2; ++i) {
      float ms = 0.0f;
      Must(CudaStatus(cudaEventRecord(begin_, stream()), "cudaEventRecord", "bench"));
      Must(enqueue());
      Must(CudaStatus(cudaEventRecord(end_, stream()), "cudaEventRecord", "bench"));
      Must(CudaStatus(cudaEventSynchronize(end_), "cudaEventSynchronize", "bench"));
      Must(CudaStatus(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime", "bench"));
      if (i >= 2) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3;
  }

  // The same of a recorded sequence; the ops run once before they are recorded.
  double TimeGraphUs(int runs, const std::function<absl::Status()>& enqueue) {
    Must(enqueue());
    Must(backend_.BeginGraph());
    const absl::Status recorded = enqueue();
    const auto graph = backend_.EndGraph();
    Must(recorded);
    Must(graph.status());
    return TimeUs(runs, [&] { return backend_.LaunchGraph(*graph); });
  }

  void MeasureBandwidth(Report* report) {
    constexpr size_t kBytes = size_t{4} << 30;
    const Buffer memory = Must(backend_.Allocate(kBytes, "bench"));
    Must(backend_.FillNormal(
        {.weight = {
             .dtype = DType::kBFloat16, .data = memory.data(), .n = 1 << 15, .k = 1 << 16}}));
    const double us =
        TimeUs(5, [&] { return LaunchReadAll(memory.data(), kBytes, sink_.data(), stream()); });
    bandwidth_ = kBytes / us * 1e6;
    report->Add("bandwidth/read 4 GiB", us, us, absl::StrFormat("%.3f TB/s", bandwidth_ / 1e12));
  }

 private:
  cudaStream_t stream() const { return backend_.context().stream; }

  CudaBackend& backend_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Buffer sink_;
  double bandwidth_ = 4.5e12;
};

// ---- Sampling.

struct SampleSetup {
  std::string name;
  std::function<void(SampleRow&)> set;
};

void SampleSection(Bench& bench, Report* report) {
  constexpr int32_t kVocab = 128256;
  CudaBackend& backend = bench.backend();
  for (const bool peaked : {false, true}) {
    for (const int rows : {1, 16, 64, 256}) {
      std::vector<float> logits(size_t{1} * rows * kVocab);
      std::minstd_rand generator(rows);
      for (float& v : logits) {
        // Sum of uniforms: near enough to normal, and quick.
        float sum = -2.0f;
        for (int i = 0; i < 4; ++i) sum += static_cast<float>(generator()) / 2147483648.0f;
        v = sum * 2.2f;
        if (peaked) v = 2.0f * v + (generator() % 2003 == 0 ? 10.0f : 0.0f);
      }
      const Buffer device = Must(backend.Allocate(logits.size() * 4, "bench"));
      Must(backend.CopyToDevice(device.data(), logits.data(), logits.size() * 4));
      const Buffer row_memory = Must(backend.Allocate(rows * sizeof(SampleRow), "bench"));
      const Buffer outputs = Must(backend.Allocate(size_t{1} * rows * 4 * 64, "bench"));
      int32_t* out = outputs.as<int32_t>();
      for (const SampleSetup& setup :
           std::vector<SampleSetup>{{"greedy", [](SampleRow& r) { r.temperature = 0.0f; }},
                                    {"temperature", [](SampleRow& r) { r.temperature = 0.8f; }},
                                    {"top_k50+top_p0.9",
                                     [](SampleRow& r) {
                                       r.top_k = 50;
                                       r.top_p = 0.9f;
                                     }},
                                    {"top_p0.9", [](SampleRow& r) { r.top_p = 0.9f; }},
                                    {"min_p0.05", [](SampleRow& r) { r.min_p = 0.05f; }},
                                    {"greedy+logprobs20",
                                     [](SampleRow& r) {
                                       r.temperature = 0.0f;
                                       r.num_logprobs = 20;
                                     }},
                                    {"greedy but one of top_p0.9",
                                     [](SampleRow& r) {
                                       const bool is_first = r.seed == 7;
                                       r.temperature = is_first ? 1.0f : 0.0f;
                                       if (is_first) r.top_p = 0.9f;
                                     }},
                                    {"typical0.9", [](SampleRow& r) { r.typical_p = 0.9f; }}}) {
        std::vector<SampleRow> host(rows);
        for (int i = 0; i < rows; ++i) {
          host[i].seed = 7 + i;
          host[i].position = 100;
          setup.set(host[i]);
        }
        Must(backend.CopyToDevice(row_memory.data(), host.data(), rows * sizeof(SampleRow)));
        const SampleParams params = {.logits = device.as<float>(),
                                     .logits_stride = kVocab,
                                     .rows = rows,
                                     .vocab_size = kVocab,
                                     .row_params = row_memory.as<SampleRow>(),
                                     .host_row_params = host.data(),
                                     .tokens = out,
                                     .logprobs = reinterpret_cast<float*>(out + rows),
                                     .ranks = out + 2 * rows,
                                     .top_ids = out + 3 * rows,
                                     .top_logprobs = reinterpret_cast<float*>(out + 23 * rows),
                                     .max_top = 20};
        const auto run = [&] { return backend.Sample(params); };
        const double us = bench.TimeUs(15, run);
        std::string note;
        if (rows == 256 || rows == 1) {
          // As behind a step: the host is ahead, and kernels that no row needs are not launched. (A
          // recorded call has all of them.)
          constexpr int kChain = 16;
          const auto chain = [&]() -> absl::Status {
            for (int i = 0; i < kChain; ++i) PAGODA_RETURN_IF_ERROR(run());
            return absl::OkStatus();
          };
          note = absl::StrFormat("mean of a chain %.2f us, recorded %.2f us",
                                 bench.TimeUs(15, chain) / kChain,
                                 bench.TimeGraphUs(15, chain) / kChain);
        }
        report->Add(absl::StrFormat(
                        "sample/%s/%s/%dx%d", peaked ? "peaked" : "flat", setup.name, rows, kVocab),
                    us,
                    bench.FloorUs(4.0 * rows * kVocab),
                    note);
      }
    }
  }
}

// ---- Row-wise ops, in chains as in a step.

void RowsSection(Bench& bench, Report* report) {
  CudaBackend& backend = bench.backend();
  constexpr int kHidden = 4096, kInner = 14336, kLength = 64;
  for (const int rows : {1, 64, 2048}) {
    const Buffer x = Must(backend.Allocate(size_t{2} * rows * 2 * kInner, "bench"));
    const Buffer y = Must(backend.Allocate(size_t{2} * rows * 2 * kInner, "bench"));
    const Buffer norm = Must(backend.Allocate(4 * kHidden, "bench"));
    const auto chain =
        [&](const std::string& name, double bytes, const std::function<absl::Status()>& op) {
          const double us = bench.TimeGraphUs(10, [&]() -> absl::Status {
            for (int i = 0; i < kLength; ++i) PAGODA_RETURN_IF_ERROR(op());
            return absl::OkStatus();
          });
          report->Add(absl::StrCat("rows/", name, "/m", rows),
                      us / kLength,
                      bench.FloorUs(bytes),
                      "mean of a chain in a graph");
        };
    chain("rms_norm4096", 4.0 * rows * kHidden, [&] {
      return backend.RmsNorm({.x = x.data(),
                              .weight = norm.as<float>(),
                              .y = y.data(),
                              .rows = rows,
                              .width = kHidden,
                              .x_stride = kHidden,
                              .y_stride = kHidden,
                              .dtype = DType::kBFloat16});
    });
    chain("silu_mul14336", 6.0 * rows * kInner, [&] {
      return backend.SiluMul({.gate_up = x.data(),
                              .y = y.data(),
                              .rows = rows,
                              .width = kInner,
                              .dtype = DType::kBFloat16});
    });
  }
}

// ---- The products of a decode step.

struct Layer {
  const char* name;
  int32_t n, k;
};
constexpr Layer kLayer[] = {
    {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}};
constexpr Layer kHead = {"lm_head", 128256, 4096};
constexpr int kNumLayers = 32;

double StepBytes() {
  double bytes = 2.0 * kHead.n * kHead.k;
  for (const Layer& l : kLayer) bytes += 2.0 * kNumLayers * l.n * l.k;
  return bytes;
}

// Weights of a whole model and the activations of a step.
class Step {
 public:
  Step(CudaBackend& backend, int32_t m) : backend_(backend), m_(m) {
    weights_ = Must(backend.Allocate(static_cast<size_t>(StepBytes()), "bench"));
    Must(backend.FillNormal({.weight = {.dtype = DType::kBFloat16,
                                        .data = weights_.data(),
                                        .n = static_cast<int64_t>(StepBytes() / 2) / 4096,
                                        .k = 4096}}));
    for (Buffer* b : {&x_, &qkv_, &gate_up_, &inner_})
      *b = Must(backend.Allocate(size_t{2} * m * 28672, "bench"));
    logits_ = Must(backend.Allocate(size_t{4} * m * kHead.n, "bench"));
    norm_ = Must(backend.Allocate(4 * 4096, "bench"));
    const std::vector<float> ones(4096, 1.0f);
    Must(backend.CopyToDevice(norm_.data(), ones.data(), 4 * 4096));
    const std::vector<uint16_t> x(m * 4096, 0x3f80);
    Must(backend.CopyToDevice(x_.data(), x.data(), x.size() * 2));
    Must(backend.Synchronize());
  }

  void set_m(int32_t m) { m_ = m; }

  using PlanFn = std::function<LinearPlan(const Layer&)>;

  // Products only, each reading what the one before wrote.
  absl::Status Products(const PlanFn& plan) {
    for (int layer = 0; layer < kNumLayers; ++layer) {
      PAGODA_RETURN_IF_ERROR(Run(plan, layer, 0, x_, 4096, qkv_, false, InputTransform::kNone));
      PAGODA_RETURN_IF_ERROR(Run(plan, layer, 1, qkv_, 6144, x_, false, InputTransform::kNone));
      PAGODA_RETURN_IF_ERROR(Run(plan, layer, 2, x_, 4096, gate_up_, false, InputTransform::kNone));
      PAGODA_RETURN_IF_ERROR(
          Run(plan, layer, 3, gate_up_, 28672, x_, false, InputTransform::kNone));
    }
    return Head(plan, InputTransform::kNone);
  }

  // With residuals, norms and the activation, as kernels of their own or within the products.
  absl::Status Dressed(const PlanFn& plan, bool fused) {
    const InputTransform norm = fused ? InputTransform::kRmsNorm : InputTransform::kNone;
    for (int layer = 0; layer < kNumLayers; ++layer) {
      if (!fused) PAGODA_RETURN_IF_ERROR(Norm());
      PAGODA_RETURN_IF_ERROR(Run(plan, layer, 0, fused ? x_ : inner_, 4096, qkv_, false, norm));
      PAGODA_RETURN_IF_ERROR(Run(plan, layer, 1, qkv_, 6144, x_, true, InputTransform::kNone));
      if (!fused) PAGODA_RETURN_IF_ERROR(Norm());
      PAGODA_RETURN_IF_ERROR(Run(plan,
                                 layer,
                                 2,
                                 fused ? x_ : inner_,
                                 4096,
                                 fused ? inner_ : gate_up_,
                                 false,
                                 norm,
                                 fused));
      if (!fused) {
        PAGODA_RETURN_IF_ERROR(backend_.SiluMul({.gate_up = gate_up_.data(),
                                                 .y = inner_.data(),
                                                 .rows = m_,
                                                 .width = 14336,
                                                 .dtype = DType::kBFloat16}));
      }
      PAGODA_RETURN_IF_ERROR(Run(plan, layer, 3, inner_, 14336, x_, true, InputTransform::kNone));
    }
    if (!fused) PAGODA_RETURN_IF_ERROR(Norm());
    return Head(plan, norm);
  }

 private:
  absl::Status Norm() {
    return backend_.RmsNorm({.x = x_.data(),
                             .weight = norm_.as<float>(),
                             .y = inner_.data(),
                             .rows = m_,
                             .width = 4096,
                             .x_stride = 4096,
                             .y_stride = 4096,
                             .dtype = DType::kBFloat16});
  }
  absl::Status Run(const PlanFn& plan,
                   int layer,
                   int which,
                   const Buffer& x,
                   int64_t x_stride,
                   const Buffer& y,
                   bool residual,
                   InputTransform transform,
                   bool silu_mul = false) {
    size_t offset = 0;
    for (int i = 0; i < which; ++i) offset += size_t{2} * kLayer[i].n * kLayer[i].k * kNumLayers;
    const Layer& l = kLayer[which];
    GemmArgs args;
    args.x = x.data();
    args.weight = weights_.as<char>() + offset + size_t{2} * layer * l.n * l.k;
    args.residual = residual ? y.data() : nullptr;
    args.y = y.data();
    args.x_stride = x_stride;
    args.y_stride = l.n;
    args.m = m_;
    args.n = l.n;
    args.k = l.k;
    args.transform = transform;
    args.norm_weight = norm_.as<float>();
    args.norm_epsilon = 1e-5f;
    if (silu_mul) {
      args.output = OutputTransform::kSiluMul;
      args.pair_distance = l.n / 2;
      args.y_stride = l.n / 2;
    }
    return backend_.linear().RunPlan(backend_.context(), DType::kBFloat16, args, plan(l));
  }
  absl::Status Head(const PlanFn& plan, InputTransform transform) {
    GemmArgs args;
    args.x = transform == InputTransform::kNone ? inner_.data() : x_.data();
    args.weight = weights_.as<char>() + weights_.size_bytes() - size_t{2} * kHead.n * kHead.k;
    args.y = logits_.data();
    args.x_stride = 4096;
    args.y_stride = kHead.n;
    args.m = m_;
    args.n = kHead.n;
    args.k = kHead.k;
    args.y_is_float = 1;
    args.transform = transform;
    args.norm_weight = norm_.as<float>();
    args.norm_epsilon = 1e-5f;
    return backend_.linear().RunPlan(backend_.context(), DType::kBFloat16, args, plan(kHead));
  }

  CudaBackend& backend_;
  int32_t m_;
  Buffer weights_, x_, qkv_, gate_up_, inner_, logits_, norm_;
};

LinearKey KeyFor(const Layer& layer, int32_t m) {
  return {.dtype = DType::kBFloat16,
          .y_is_float = layer.n == kHead.n,
          .n = layer.n,
          .k = layer.k,
          .m_bucket = m};
}

// Every plan's time; the best of cuBLASLt's, of ours, and of all go into `best`.
using BestPlans = std::vector<std::pair<std::string, std::array<LinearPlan, 3>>>;

BestPlans PlansSection(Bench& bench, int32_t m, bool print, Report* report) {
  BestPlans best;
  for (const Layer& layer : {kLayer[0], kLayer[1], kLayer[2], kLayer[3], kHead}) {
    const auto measured = Must(bench.backend().linear().MeasureAll(KeyFor(layer, m)));
    const double floor = bench.FloorUs(2.0 * layer.n * layer.k + 2.0 * m * layer.k +
                                       (layer.n == kHead.n ? 4.0 : 2.0) * m * layer.n);
    std::array<LinearPlan, 3> plans;
    std::array<float, 3> times = {1e9f, 1e9f, 1e9f};
    int lt_idx = 0;
    for (const LinearTuner::Measurement& r : measured) {
      const bool is_lt = std::holds_alternative<LtAlgorithm>(r.plan);
      std::string name = absl::StrCat("plans/", layer.name, "/m", m, "/", PlanText(r.plan));
      if (is_lt) absl::StrAppend(&name, "#", lt_idx++);
      if (!r.status.ok() || !(r.relative_error < 0.02f)) {
        report->Add(name,
                    0,
                    floor,
                    absl::StrCat("REJECTED error ", r.relative_error, " ", r.status.ToString()));
        continue;
      }
      if (print)
        report->Add(
            name,
            r.time_us,
            floor,
            absl::StrFormat(
                "%.3f TB/s, error %.1e", 2e-6 * layer.n * layer.k / r.time_us, r.relative_error));
      for (const int kind : {is_lt ? 0 : 1, 2}) {
        if (r.time_us < times[kind]) {
          times[kind] = r.time_us;
          plans[kind] = r.plan;
        }
      }
    }
    if (times[1] == 1e9f) plans[1] = plans[0];
    report->Add(
        absl::StrCat("plans/", layer.name, "/m", m, "/best"),
        times[2],
        floor,
        absl::StrFormat("%s; cublaslt %.2f, ours %.2f us", PlanText(plans[2]), times[0], times[1]));
    best.push_back({layer.name, plans});
  }
  return best;
}

void StepSection(Bench& bench, int32_t only_m, Report* report) {
  Step step(bench.backend(), 64);
  const double floor = bench.FloorUs(StepBytes());
  for (const int32_t m : {1, 2, 4, 8, 16, 32, 64}) {
    if (only_m != 0 && m != only_m) continue;
    step.set_m(m);
    const bool prints = m == only_m || m == 1 || m == 4 || m == 8 || m == 64;
    const BestPlans best = PlansSection(bench, m, prints, report);
    const auto pick = [&](int kind) {
      return [&best, kind](const Layer& layer) {
        for (const auto& [name, plans] : best) {
          if (name == layer.name) return plans[kind];
        }
        return LinearPlan(LtAlgorithm{});
      };
    };
    static constexpr const char* kKinds[] = {"cublaslt", "ours", "best"};
    for (int kind = 0; kind < 3; ++kind) {
      report->Add(absl::StrCat("step/products/m", m, "/", kKinds[kind]),
                  bench.TimeGraphUs(7, [&] { return step.Products(pick(kind)); }),
                  floor);
    }
    if (m == 1 || m == 2) {
      for (const LinearPlan& plan : OwnCandidates(m)) {
        if (std::holds_alternative<NarrowConfig>(plan)) continue;
        const auto all = [&](const Layer&) { return plan; };
        const absl::Status status = step.Products(all);
        if (absl::IsUnimplemented(status)) continue;
        Must(status);
        report->Add(absl::StrCat("step/products/m", m, "/", PlanText(plan)),
                    bench.TimeGraphUs(5, [&] { return step.Products(all); }),
                    floor);
      }
    }
    report->Add(absl::StrCat("step/dressed/m", m, "/separate"),
                bench.TimeGraphUs(7, [&] { return step.Dressed(pick(2), false); }),
                floor,
                "with norms, residuals and the activation");
    if (m > kMaxNarrowRows) continue;
    const auto fusing = [&](const Layer& layer) -> LinearPlan {
      const LinearPlan plan = pick(1)(layer);
      if (std::holds_alternative<GemvRingConfig>(plan)) return plan;
      // A norm needs all of k in one block.
      const auto* narrow = std::get_if<NarrowConfig>(&plan);
      const bool has_norm = layer.n != 4096;
      if (narrow != nullptr && (narrow->split == 1 || !has_norm)) return plan;
      if (m <= 2) return GemvRingConfig{16, 3, 1};
      return NarrowConfig{512, 1};
    };
    report->Add(absl::StrCat("step/dressed/m", m, "/fused"),
                bench.TimeGraphUs(7, [&] { return step.Dressed(fusing, true); }),
                floor,
                "norms and the activation within the products");
  }
}

int Main(int argc, char** argv) {
  std::string json;
  int32_t only_m = 0;
  std::vector<std::string> filters;
  for (int i = 1; i < argc; ++i) {
    if (absl::StartsWith(argv[i], "--json=")) {
      json = argv[i] + 7;
    } else if (absl::StartsWith(argv[i], "--m=")) {
      only_m = std::atoi(argv[i] + 4);
    } else {
      filters.emplace_back(argv[i]);
    }
  }
  const auto wants = [&](const std::string& section) {
    return filters.empty() ||
           std::any_of(filters.begin(), filters.end(), [&](const std::string& f) {
             return absl::StrContains(section, f);
           });
  };
  auto opened = CudaBackend::Create({});
  if (!opened.ok()) {
    std::printf("skipped: %s\n", opened.status().ToString().c_str());
    return 77;
  }
  Bench bench(static_cast<CudaBackend&>(**opened));
  Report report;
  bench.MeasureBandwidth(&report);
  if (wants("rows")) RowsSection(bench, &report);
  if (wants("sample")) SampleSection(bench, &report);
  if (wants("step")) StepSection(bench, only_m, &report);
  if (wants("plans")) {
    for (const int32_t m : {128, 256, 512, 2048}) PlansSection(bench, m, false, &report);
  }
  report.Write(json);
  return 0;
}

}  // namespace
}  // namespace pagoda::kernels::cuda

int main(int argc, char** argv) { return pagoda::kernels::cuda::Main(argc, argv); }
