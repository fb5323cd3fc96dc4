#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace pagoda::kernels::cuda {
namespace {

struct Shape {
  int32_t n, k;
};

// How a product is dressed.
struct Dress {
  bool bias = false;
  bool residual = false;  // in place: y
  bool y_is_float = false;
  int32_t padding = 0;  // elements between rows of x and of y
  InputTransform transform = InputTransform::kNone;
};

std::string DressText(const Dress& d) {
  static constexpr const char* kTransforms[] = {"", "/norm", "/silu"};
  return absl::StrCat(d.bias ? "/bias" : "",
                      d.residual ? "/residual" : "",
                      d.y_is_float ? "/float" : "",
                      d.padding != 0 ? "/strided" : "",
                      kTransforms[static_cast<int>(d.transform)]);
}

// A weight on the device with the rows of it that the reference needs on the host.
class Weight {
 public:
  Weight(CudaBackend& backend, DType dtype, Shape shape) : dtype_(dtype), shape_(shape) {
    memory_ = Must(backend.Allocate(size_t{2} * shape.n * shape.k, "test weight"));
    Must(backend.FillNormal(
        {.weight = {.dtype = dtype, .data = memory_.data(), .n = shape.n, .k = shape.k},
         .stddev = 1.0f / std::sqrt(static_cast<float>(shape.k)),
         .seed = 7}));
    // All columns of small products; else a sample with both ends and the ends of tiles.
    for (int32_t column = 0; column < shape.n; ++column) {
      const bool edge = column < 4 || column >= shape.n - 4 || column % 128 < 1;
      if (shape.n > 512 && !(edge && columns_.size() < 40) && column % (shape.n / 64 + 1) != 0 &&
          column < shape.n - 4) {
        continue;
      }
      columns_.push_back(column);
      rows_.push_back(
          Decode(dtype,
                 Download<uint16_t>(
                     backend, memory_.as<uint16_t>() + int64_t{column} * shape.k, shape.k)));
    }
  }

  DType dtype() const { return dtype_; }
  Shape shape() const { return shape_; }
  const void* data() const { return memory_.data(); }
  const std::vector<int32_t>& columns() const { return columns_; }
  const std::vector<float>& row(size_t i) const { return rows_[i]; }

 private:
  const DType dtype_;
  const Shape shape_;
  Buffer memory_;
  std::vector<int32_t> columns_;
  std::vector<std::vector<float>> rows_;
};

// Inputs of one product and what it should give in the weight's sampled columns.
class Product {
 public:
  Product(CudaBackend& backend, const Weight& weight, int32_t m, const Dress& dress)
      : backend_(backend), weight_(weight), dress_(dress) {
    const DType dtype = weight.dtype();
    const auto [n, k] = weight.shape();
    const int32_t x_width = dress.transform == InputTransform::kSiluMul ? 2 * k : k;
    const int32_t x_stride = x_width + dress.padding;
    y_stride_ = n + dress.padding;
    y_ = RandomFloats(size_t{1} * m * y_stride_, 3);
    std::vector<float> x = RandomFloats(size_t{1} * m * x_stride, 1);
    for (int32_t i = 0; i < m; ++i) {
      for (int32_t j = x_width; j < x_stride; ++j) x[i * x_stride + j] = NAN;
    }
    const auto x_bits = Encode(dtype, x);
    x_memory_ = Upload(backend, x_bits);
    bias_ = RandomFloats(n, 2);
    bias_memory_ = Upload(backend, bias_);
    norm_ = RandomFloats(k, 4);
    norm_memory_ = Upload(backend, norm_);
    args_.x = x_memory_.data();
    args_.weight = weight.data();
    args_.bias = dress.bias ? bias_memory_.as<float>() : nullptr;
    args_.x_stride = x_stride;
    args_.y_stride = y_stride_;
    args_.m = m;
    args_.n = n;
    args_.k = k;
    args_.y_is_float = dress.y_is_float ? 1 : 0;
    args_.transform = dress.transform;
    args_.norm_weight = norm_memory_.as<float>();
    args_.norm_epsilon = 1e-5f;
    args_.norm_offset = 0.5f;
    MakeExpected(Decode(dtype, x_bits));
  }

  // Runs a plan on fresh memory; the error of the result, and its bits.
  absl::Status Check(const LinearPlan& plan, std::vector<uint8_t>* bits) {
    const Buffer y = FreshY();
    args_.y = y.data();
    args_.residual = dress_.residual ? y.data() : nullptr;
    PAGODA_RETURN_IF_ERROR(
        backend_.linear().RunPlan(backend_.context(), weight_.dtype(), args_, plan));
    return CheckY(y, bits);
  }

  const GemmArgs& args() const { return args_; }

 private:
  DType y_dtype() const { return dress_.y_is_float ? DType::kFloat32 : weight_.dtype(); }

  Buffer FreshY() {
    if (!dress_.residual) return Poisoned(backend_, y_.size() * DTypeBytes(y_dtype()));
    return dress_.y_is_float ? Upload(backend_, y_) : Upload(backend_, Encode(weight_.dtype(), y_));
  }

  void MakeExpected(const std::vector<float>& x) {
    const auto [n, k] = weight_.shape();
    const DType dtype = weight_.dtype();
    for (int32_t i = 0; i < args_.m; ++i) {
      std::vector<double> row(k);
      double squares = 0.0;
      for (int32_t j = 0; j < k; ++j) {
        const double v = x[i * args_.x_stride + j];
        row[j] = v;
        squares += v * v;
      }
      for (int32_t j = 0; j < k && dress_.transform != InputTransform::kNone; ++j) {
        double v = row[j];
        if (dress_.transform == InputTransform::kRmsNorm) {
          v *= (norm_[j] + 0.5) / std::sqrt(squares / k + 1e-5);
        } else {
          v = v / (1.0 + std::exp(-v)) * x[i * args_.x_stride + k + j];
        }
        row[j] = DecodeOne(dtype, Encode(dtype, {static_cast<float>(v)})[0]);
      }
      for (size_t c = 0; c < weight_.columns().size(); ++c) {
        double sum = 0.0;
        const std::vector<float>& w = weight_.row(c);
        for (int32_t j = 0; j < k; ++j) sum += row[j] * w[j];
        const int32_t column = weight_.columns()[c];
        if (dress_.bias) sum += bias_[column];
        if (dress_.residual) {
          const float r = y_[i * y_stride_ + column];
          sum += dress_.y_is_float ? r : DecodeOne(dtype, Encode(dtype, {r})[0]);
        }
        expected_.push_back(sum);
      }
    }
  }

  absl::Status CheckY(const Buffer& y, std::vector<uint8_t>* bits) {
    *bits = Download<uint8_t>(backend_, y.data(), y_.size() * DTypeBytes(y_dtype()));
    const auto value = [&](int64_t at) {
      if (dress_.y_is_float) return reinterpret_cast<const float*>(bits->data())[at];
      return DecodeOne(weight_.dtype(), reinterpret_cast<const uint16_t*>(bits->data())[at]);
    };
    std::vector<float> got;
    for (int32_t i = 0; i < args_.m; ++i) {
      for (const int32_t column : weight_.columns())
        got.push_back(value(int64_t{i} * y_stride_ + column));
      // Everything is written, nothing beyond a row is.
      for (int64_t j = 0; j < y_stride_; ++j) {
        const float v = value(i * y_stride_ + j);
        if (j < args_.n && std::isnan(v)) {
          return absl::InternalError(absl::StrCat("element (", i, ", ", j, ") is not written"));
        }
        const float before = y_[i * y_stride_ + j];
        if (j >= args_.n && dress_.residual ? std::abs(v - before) > 0.01f * std::abs(before)
                                            : j >= args_.n && !std::isnan(v)) {
          return absl::InternalError(
              absl::StrCat("element (", i, ", ", j, ") beyond the row changed"));
        }
      }
    }
    // A bias is rounded to the type of y by cuBLASLt.
    const double tolerance = dress_.y_is_float ? 5e-4 : Tolerance(weight_.dtype());
    return ExpectClose(
        "y",
        got,
        expected_,
        dress_.transform == InputTransform::kNone ? tolerance : std::max(tolerance, 1e-3));
  }

  CudaBackend& backend_;
  const Weight& weight_;
  const Dress dress_;
  Buffer x_memory_, bias_memory_, norm_memory_;
  std::vector<float> y_, bias_, norm_;
  int64_t y_stride_ = 0;
  GemmArgs args_;
  std::vector<double> expected_;
};

// Every plan that takes the product, each twice: right, and the same bits again.
absl::Status EveryPlan(CudaBackend& backend, const Weight& weight, int32_t m, const Dress& dress) {
  Product product(backend, weight, m, dress);
  std::vector<LinearPlan> plans = OwnCandidates(LinearBucket(m));
  if (m == 1) plans.emplace_back(NarrowConfig{});
  plans.emplace_back(LtAlgorithm{});
  int num_run = 0;
  std::string failures;
  for (const LinearPlan& plan : plans) {
    std::vector<uint8_t> bits, again;
    absl::Status status = product.Check(plan, &bits);
    if (absl::IsUnimplemented(status)) continue;
    ++num_run;
    if (status.ok()) status = product.Check(plan, &again);
    if (status.ok() && bits != again) status = absl::InternalError("two runs differ");
    if (!status.ok()) absl::StrAppend(&failures, " [", PlanText(plan), ": ", status.message(), "]");
  }
  if (!failures.empty()) return absl::InternalError(failures);
  return ExpectTrue(num_run > 0, "no plan takes the product");
}

// The op itself: guesses, measures, chooses, and gives the right product, also when recorded.
absl::Status Op(CudaBackend& backend, const Weight& weight, int32_t m) {
  const auto [n, k] = weight.shape();
  const Buffer x = Upload(backend, Encode(weight.dtype(), RandomFloats(size_t{1} * m * k, 1)));
  const Buffer y = Poisoned(backend, size_t{2} * m * n);
  const Buffer z = Poisoned(backend, size_t{2} * m * n);
  const LinearWeight linear = {.dtype = weight.dtype(), .data = weight.data(), .n = n, .k = k};
  const auto run = [&](const Buffer& out) {
    return backend.Linear({.x = x.data(),
                           .weight = linear,
                           .y = out.data(),
                           .m = m,
                           .x_stride = k,
                           .y_stride = n,
                           .x_dtype = weight.dtype(),
                           .y_dtype = weight.dtype()});
  };
  // A guess, then what measuring found.
  PAGODA_RETURN_IF_ERROR(run(y));
  while (Must(backend.Tune())) {
  }
  PAGODA_RETURN_IF_ERROR(run(y));
  PAGODA_RETURN_IF_ERROR(backend.BeginGraph());
  PAGODA_RETURN_IF_ERROR(run(z));
  const GraphId graph = Must(backend.EndGraph());
  PAGODA_RETURN_IF_ERROR(backend.LaunchGraph(graph));
  return ExpectTrue(Download<uint16_t>(backend, y.data(), size_t{1} * m * n) ==
                        Download<uint16_t>(backend, z.data(), size_t{1} * m * n),
                    "recorded and direct products differ");
}

// A chain in which each product reads what the one before wrote, by every kind of plan in turn,
// recorded and run without pauses: what was read too early would show.
absl::Status Chain(CudaBackend& backend, int32_t m) {
  constexpr int32_t kWidth = 2048;
  constexpr int kLength = 40;
  const Weight weight(backend, DType::kBFloat16, {kWidth, kWidth});
  std::vector<LinearPlan> plans = OwnCandidates(LinearBucket(m));
  if (m == 1) plans.emplace_back(NarrowConfig{});
  plans.emplace_back(LtAlgorithm{});
  const Buffer x = Upload(backend, Encode(DType::kBFloat16, RandomFloats(m * kWidth, 9)));
  std::vector<Buffer> y;
  for (int i = 0; i < 2; ++i) y.push_back(Must(backend.Allocate(m * kWidth * 2, "test")));
  GemmArgs args;
  args.weight = weight.data();
  args.x_stride = args.y_stride = args.n = args.k = kWidth;
  args.m = m;
  const auto run = [&](bool pause) -> absl::Status {
    for (int i = 0; i < kLength; ++i) {
      args.x = i == 0 ? x.data() : y[i % 2].data();
      args.y = y[(i + 1) % 2].data();
      const LinearPlan& plan = plans[i % plans.size()];
      const absl::Status status =
          backend.linear().RunPlan(backend.context(), DType::kBFloat16, args, plan);
      if (absl::IsUnimplemented(status)) {
        PAGODA_RETURN_IF_ERROR(
            backend.linear().RunPlan(backend.context(), DType::kBFloat16, args, LtAlgorithm{}));
      } else {
        PAGODA_RETURN_IF_ERROR(status);
      }
      if (pause) PAGODA_RETURN_IF_ERROR(backend.Synchronize());
    }
    return absl::OkStatus();
  };
  PAGODA_RETURN_IF_ERROR(run(true));
  const auto expected = Download<uint16_t>(backend, y[kLength % 2].data(), m * kWidth);
  PAGODA_RETURN_IF_ERROR(backend.BeginGraph());
  const absl::Status recorded = run(false);
  const auto graph = backend.EndGraph();
  PAGODA_RETURN_IF_ERROR(recorded);
  PAGODA_RETURN_IF_ERROR(graph.status());
  for (int i = 0; i < 20; ++i) {
    PAGODA_RETURN_IF_ERROR(backend.LaunchGraph(*graph));
    PAGODA_RETURN_IF_ERROR(
        ExpectTrue(Download<uint16_t>(backend, y[kLength % 2].data(), m * kWidth) == expected,
                   absl::StrCat("replay ", i, " differs from a run with pauses")));
  }
  return absl::OkStatus();
}

absl::Status PlanFile() {
  const LinearKey key = {.dtype = DType::kFloat16,
                         .y_is_float = true,
                         .has_bias = false,
                         .n = 6144,
                         .k = 4096,
                         .m_bucket = 8};
  LtAlgorithm lt;
  for (size_t i = 0; i < std::size(lt.algo.data); ++i) lt.algo.data[i] = ~uint64_t{0} - i;
  for (const LinearPlan& plan : {LinearPlan(lt),
                                 LinearPlan(GemvConfig{2, 8}),
                                 LinearPlan(GemvRingConfig{16, 3, 2}),
                                 LinearPlan(NarrowConfig{512, 4})}) {
    const std::string line = FormatPlanLine(key, {plan, 12.5f});
    const auto parsed = ParsePlanLine(line);
    PAGODA_RETURN_IF_ERROR(parsed.status());
    PAGODA_RETURN_IF_ERROR(ExpectTrue(
        parsed->first == key && FormatPlanLine(parsed->first, parsed->second) == line, line));
  }
  for (const char* bad : {"",
                          "bfloat16 0 0 1 2",
                          "bfloat16 0 0 1 2 3 4.0 magic 1",
                          "int8 0 0 1 2 3 4.0 gemv 1 4",
                          "bfloat16 0 0 1 2 3 4.0 gemv 1",
                          "bfloat16 0 0 1 2 3 4.0 gemv 1 x"}) {
    PAGODA_RETURN_IF_ERROR(ExpectTrue(!ParsePlanLine(bad).ok(), bad));
  }
  return absl::OkStatus();
}

}  // namespace

void RunLinearCases(CheckRunner& runner, CudaBackend& backend) {
  runner.Run("linear/plan_file", [] { return PlanFile(); });
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const Shape shape : {Shape{128, 64},
                              Shape{5, 8},
                              Shape{130, 200},
                              Shape{1003, 1032},
                              Shape{513, 4096},
                              Shape{4096, 4096},
                              Shape{6144, 4096},
                              Shape{4096, 14336},
                              Shape{28672, 4096},
                              Shape{300, 33}}) {
      const std::string prefix =
          absl::StrFormat("linear/%s/%dx%d", DTypeName(dtype), shape.n, shape.k);
      if (!runner.Wants(prefix) && !runner.Wants("linear")) continue;
      const bool large = int64_t{shape.n} * shape.k > (int64_t{1} << 22);
      // The second type sees the small shapes only.
      if (large && dtype != DType::kBFloat16) continue;
      const Weight weight(backend, dtype, shape);
      const auto check = [&](int32_t m, const Dress& dress) {
        runner.Run(absl::StrCat(prefix, "/m", m, DressText(dress)),
                   [&] { return EveryPlan(backend, weight, m, dress); });
      };
      for (const int32_t m : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65, 200}) {
        if (large && m != 1 && m != 4 && m != 8 && m != 16 && m != 64) continue;
        check(m, {});
        if (large && m != 1 && m != 64) continue;
        check(m, {.bias = true, .residual = true, .padding = 8});
        check(m, {.residual = true, .y_is_float = true});
        const bool takes_norm = m <= kMaxGemvRows || (m <= kMaxNarrowRows && shape.k % 16 == 0);
        if (!takes_norm || shape.k % 8 != 0) continue;
        check(m, {.residual = true, .transform = InputTransform::kRmsNorm});
        if (m > kMaxGemvRows) continue;
        check(m, {.transform = InputTransform::kSiluMul});
      }
    }
  }
  for (const int32_t m : {1, 2, 4, 8, 16, 64}) {
    runner.Run(absl::StrCat("linear/chain/m", m), [&] { return Chain(backend, m); });
  }
  if (runner.Wants("linear/op")) {
    const Weight weight(backend, DType::kBFloat16, {2048, 1024});
    for (const int32_t m : {1, 3, 6, 64, 100, 777}) {
      runner.Run(absl::StrCat("linear/op/m", m), [&] { return Op(backend, weight, m); });
    }
  }
}

}  // namespace pagoda::kernels::cuda
