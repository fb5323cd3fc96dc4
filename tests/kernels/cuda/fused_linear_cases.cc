#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr float kEpsilon = 1e-5f;
constexpr float kNormOffset = 0.5f;

float Rounded(DType dtype, double v) {
  return DecodeOne(dtype, Encode(dtype, {static_cast<float>(v)})[0]);
}

// A product with a norm before it, on the host in float64, rounded where the separate ops round.
struct Operands {
  DType dtype;
  int32_t m, n, k;
  std::vector<float> x, weight, norm, bias;
  Buffer device_x, device_weight, device_norm, device_bias;

  Operands(CudaBackend& backend, DType type, int32_t rows, int32_t columns, int32_t depth)
      : dtype(type), m(rows), n(columns), k(depth) {
    const auto x_bits = Encode(type, RandomFloats(size_t{1} * m * k, 1));
    const auto weight_bits =
        Encode(type, RandomFloats(size_t{1} * n * k, 2, 1.0f / std::sqrt(static_cast<float>(k))));
    x = Decode(type, x_bits);
    weight = Decode(type, weight_bits);
    norm = RandomFloats(k, 3);
    bias = RandomFloats(n, 4);
    device_x = Upload(backend, x_bits);
    device_weight = Upload(backend, weight_bits);
    device_norm = Upload(backend, norm);
    device_bias = Upload(backend, bias);
  }

  LinearParams Linear(const Buffer& y, int64_t y_stride) const {
    return {.x = device_x.data(),
            .weight = {.dtype = dtype, .data = device_weight.data(), .n = n, .k = k},
            .bias = device_bias.data(),
            .y = y.data(),
            .m = m,
            .x_stride = k,
            .y_stride = y_stride,
            .x_dtype = dtype,
            .y_dtype = dtype};
  }
  InputNorm Norm() const {
    return {.weight = device_norm.as<float>(), .epsilon = kEpsilon, .weight_offset = kNormOffset};
  }

  // [m, n], rounded to dtype.
  std::vector<float> Product(bool has_norm) const {
    std::vector<float> product;
    for (int32_t i = 0; i < m; ++i) {
      std::vector<double> row(k);
      double squares = 0.0;
      for (int32_t j = 0; j < k; ++j) {
        row[j] = x[i * k + j];
        squares += row[j] * row[j];
      }
      for (int32_t j = 0; has_norm && j < k; ++j) {
        row[j] =
            Rounded(dtype, row[j] * (norm[j] + kNormOffset) / std::sqrt(squares / k + kEpsilon));
      }
      for (int32_t c = 0; c < n; ++c) {
        double sum = bias[c];
        for (int32_t j = 0; j < k; ++j) sum += row[j] * weight[int64_t{c} * k + j];
        product.push_back(Rounded(dtype, sum));
      }
    }
    return product;
  }
};

// As the op, or by a plan.
absl::Status RunTwice(CudaBackend& backend,
                      const FusedLinearParams& params,
                      const std::optional<NarrowConfig>& plan,
                      const Buffer& y,
                      std::vector<uint16_t>* bits) {
  const size_t count = y.size_bytes() / 2;
  const auto run = [&]() -> absl::Status {
    if (!plan.has_value()) return backend.FusedLinear(params);
    PAGODA_ASSIGN_OR_RETURN(const GemmArgs args, ToGemmArgs(params));
    return backend.linear().RunPlan(backend.context(), params.linear.x_dtype, args, *plan);
  };
  if (!plan.has_value()) {
    PAGODA_RETURN_IF_ERROR(ExpectTrue(backend.SupportsFusedLinear(params), "not supported"));
  }
  PAGODA_RETURN_IF_ERROR(run());
  *bits = Download<uint16_t>(backend, y.data(), count);
  PAGODA_RETURN_IF_ERROR(run());
  return ExpectTrue(Download<uint16_t>(backend, y.data(), count) == *bits, "two runs differ");
}

// With a norm, or without one by a plan.
absl::Status SiluMul(CudaBackend& backend,
                     DType dtype,
                     int32_t m,
                     int32_t width,
                     int32_t k,
                     std::optional<NarrowConfig> plan = std::nullopt) {
  const Operands operands(backend, dtype, m, 2 * width, k);
  const int32_t stride = width + 8;
  const Buffer y = Poisoned(backend, size_t{2} * m * stride);
  FusedLinearParams params = {.linear = operands.Linear(y, stride), .silu_mul = true};
  if (!plan.has_value()) params.norm = operands.Norm();
  std::vector<uint16_t> bits;
  PAGODA_RETURN_IF_ERROR(RunTwice(backend, params, plan, y, &bits));
  const std::vector<float> product = operands.Product(!plan.has_value());
  std::vector<float> got;
  std::vector<double> want;
  for (int32_t i = 0; i < m; ++i) {
    for (int32_t j = 0; j < stride; ++j) {
      const float v = DecodeOne(dtype, bits[i * stride + j]);
      if (j >= width) {
        PAGODA_RETURN_IF_ERROR(ExpectTrue(std::isnan(v), "wrote between rows"));
        continue;
      }
      const double gate = product[i * 2 * width + j], up = product[i * 2 * width + width + j];
      got.push_back(v);
      want.push_back(gate / (1.0 + std::exp(-gate)) * up);
    }
  }
  return ExpectClose("y", got, want, 2 * Tolerance(dtype));
}

struct RopeShape {
  int32_t q_heads, kv_heads, head_dim;
};

absl::Status Rope(CudaBackend& backend,
                  DType dtype,
                  int32_t m,
                  RopeShape shape,
                  std::optional<NarrowConfig> plan = std::nullopt) {
  constexpr int32_t kPositions = 40, kBlocks = 6, kBlockSize = 16, kDepth = 384;
  const int32_t heads = shape.q_heads + 2 * shape.kv_heads;
  const int32_t d = shape.head_dim, half = d / 2;
  const Operands operands(backend, dtype, m, heads * d, kDepth);
  std::vector<float> table(kPositions * d);
  for (int p = 0; p < kPositions; ++p) {
    for (int i = 0; i < half; ++i) {
      table[p * d + i] = static_cast<float>(std::cos(p * std::pow(10000.0, -2.0 * i / d)));
      table[p * d + half + i] = static_cast<float>(std::sin(p * std::pow(10000.0, -2.0 * i / d)));
    }
  }
  // A position beyond the table, rows that are padding, a slot outside the pool.
  std::vector<int32_t> positions = {1000}, slots = {0};
  for (int32_t i = 1; i < m; ++i) {
    positions.push_back(i * 7 % kPositions);
    slots.push_back(i % 5 == 1 ? -1 : (i * 29) % (kBlocks * kBlockSize + 1));
  }
  const Buffer device_table = Upload(backend, table);
  const Buffer device_positions = Upload(backend, positions);
  const Buffer device_slots = Upload(backend, slots);
  const int64_t head_stride = int64_t{kBlockSize} * d;
  KvCacheView cache = {.dtype = dtype,
                       .num_blocks = kBlocks,
                       .block_size = kBlockSize,
                       .num_kv_heads = shape.kv_heads,
                       .head_dim = d,
                       .block_stride = 2 * shape.kv_heads * head_stride,
                       .v_offset = shape.kv_heads * head_stride,
                       .head_stride = head_stride,
                       .k_scale = 0.5f};
  const Buffer pool = Poisoned(backend, 2 * kBlocks * cache.block_stride);
  cache.data = pool.data();
  const AttentionBatch batch = {.num_seqs = 1,
                                .num_rows = m,
                                .positions = device_positions.as<int32_t>(),
                                .kv_slots = device_slots.as<int32_t>()};
  const int64_t stride = int64_t{heads} * d;
  const Buffer y = Poisoned(backend, 2 * m * stride);
  const RopeKvWriteParams rope = {.qkv = y.data(),
                                  .qkv_stride = stride,
                                  .cos_sin = device_table.as<float>(),
                                  .max_positions = kPositions,
                                  .rotary_dim = d,
                                  .num_q_heads = shape.q_heads,
                                  .batch = &batch,
                                  .cache = cache,
                                  .dtype = dtype};
  const LinearParams linear = operands.Linear(y, stride);
  FusedLinearParams params = {.linear = linear, .rope = &rope};
  if (!plan.has_value()) params.norm = operands.Norm();
  std::vector<uint16_t> bits;
  PAGODA_RETURN_IF_ERROR(RunTwice(backend, params, plan, y, &bits));
  const auto written = Download<uint16_t>(backend, pool.data(), pool.size_bytes() / 2);
  std::vector<uint16_t> rest = written;
  const std::vector<float> product = operands.Product(!plan.has_value());
  std::vector<float> got;
  std::vector<double> want;
  for (int32_t row = 0; row < m; ++row) {
    const float* angles = &table[std::min(positions[row], kPositions - 1) * d];
    for (int32_t at = 0; at < stride; ++at) {
      const int32_t head = at / d, i = at % d, pair = i % half;
      const float* p = &product[row * stride + head * d];
      double value = p[i];
      if (head < shape.q_heads + shape.kv_heads) {
        value = i < half ? double{p[i]} * angles[pair] - double{p[i + half]} * angles[half + pair]
                         : double{p[i]} * angles[pair] + double{p[pair]} * angles[half + pair];
      }
      if (head < shape.q_heads) {
        got.push_back(DecodeOne(dtype, bits[row * stride + at]));
        want.push_back(value);
        continue;
      }
      const int32_t slot = slots[row];
      if (slot < 0 || slot >= kBlocks * kBlockSize) continue;
      const bool is_value = head >= shape.q_heads + shape.kv_heads;
      const int32_t kv_head = (head - shape.q_heads) % shape.kv_heads;
      const int64_t place = slot / kBlockSize * cache.block_stride +
                            (is_value ? cache.v_offset : 0) + kv_head * head_stride +
                            slot % kBlockSize * d + i;
      got.push_back(DecodeOne(dtype, written[place]));
      want.push_back(is_value ? value : 2.0 * value);
      rest[place] = 0xffff;
    }
  }
  PAGODA_RETURN_IF_ERROR(ExpectTrue(rest == std::vector<uint16_t>(rest.size(), 0xffff),
                                    "wrote to slots that are no row's"));
  return ExpectClose("q, k and v", got, want, 2 * Tolerance(dtype));
}

// A chain of fused products recorded and replayed gives what it gives with pauses.
absl::Status Chain(CudaBackend& backend, int32_t m) {
  constexpr int32_t kWidth = 1024, kLength = 30;
  const Operands operands(backend, DType::kBFloat16, m, 2 * kWidth, kWidth);
  std::vector<Buffer> y;
  for (int i = 0; i < 2; ++i) y.push_back(Must(backend.Allocate(2 * m * kWidth, "test")));
  const auto run = [&](bool pause) -> absl::Status {
    for (int i = 0; i < kLength; ++i) {
      FusedLinearParams params = {
          .linear = operands.Linear(y[i % 2], kWidth), .norm = operands.Norm(), .silu_mul = true};
      if (i > 0) params.linear.x = y[(i + 1) % 2].data();
      PAGODA_RETURN_IF_ERROR(backend.FusedLinear(params));
      if (pause) PAGODA_RETURN_IF_ERROR(backend.Synchronize());
    }
    return absl::OkStatus();
  };
  PAGODA_RETURN_IF_ERROR(run(true));
  const auto result = [&] {
    return Download<uint16_t>(backend, y[(kLength - 1) % 2].data(), m * kWidth);
  };
  const std::vector<uint16_t> expected = result();
  PAGODA_RETURN_IF_ERROR(backend.BeginGraph());
  const absl::Status recorded = run(false);
  const auto graph = backend.EndGraph();
  PAGODA_RETURN_IF_ERROR(recorded);
  PAGODA_RETURN_IF_ERROR(graph.status());
  for (int i = 0; i < 20; ++i) {
    PAGODA_RETURN_IF_ERROR(backend.LaunchGraph(*graph));
    PAGODA_RETURN_IF_ERROR(ExpectTrue(result() == expected, absl::StrCat("replay ", i)));
  }
  return absl::OkStatus();
}

absl::Status Refusals(CudaBackend& backend) {
  const Operands operands(backend, DType::kBFloat16, 1, 256, 128);
  const Buffer y = Poisoned(backend, 4 * 256 * 128);
  FusedLinearParams many = {.linear = operands.Linear(y, 128), .silu_mul = true};
  many.linear.m = 2048;
  PAGODA_RETURN_IF_ERROR(ExpectTrue(!backend.SupportsFusedLinear(many), "2048 rows"));
  PAGODA_RETURN_IF_ERROR(
      ExpectTrue(absl::IsUnimplemented(backend.FusedLinear(many)), "2048 rows run"));
  FusedLinearParams wide = {.linear = operands.Linear(y, 256), .silu_mul = true};
  wide.linear.y_dtype = DType::kFloat32;
  PAGODA_RETURN_IF_ERROR(ExpectTrue(!backend.SupportsFusedLinear(wide), "y of float32"));
  FusedLinearParams residual = {.linear = operands.Linear(y, 128), .silu_mul = true};
  residual.linear.residual = y.data();
  return ExpectTrue(absl::IsInvalidArgument(backend.FusedLinear(residual)), "residual and silu");
}

}  // namespace

void RunFusedLinearCases(CheckRunner& runner, CudaBackend& backend) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t m : {1, 2, 3, 8}) {
      for (const auto& [width, k] : {std::pair{64, 64}, {200, 512}, {1000, 1040}, {96, 14336}}) {
        // The norm of a row needs all of it in one block.
        if (m > 2 && k > 4096) continue;
        runner.Run(absl::StrFormat("fused/silu_mul/%s/%dx%d/m%d", DTypeName(dtype), width, k, m),
                   [&, width = width, k = k] { return SiluMul(backend, dtype, m, width, k); });
      }
      for (const RopeShape shape : {RopeShape{4, 2, 64}, {8, 2, 128}, {3, 1, 80}}) {
        runner.Run(
            absl::StrFormat(
                "fused/rope/%s/%dof%d/m%d", DTypeName(dtype), shape.q_heads, shape.head_dim, m),
            [&] { return Rope(backend, dtype, m, shape); });
      }
    }
  }
  for (const int32_t m : {1, 7, 8, 13, 16}) {
    for (const int split : {1, 2, 4, 8}) {
      runner.Run(absl::StrFormat("fused/narrow/silu_mul/m%d/split%d", m, split), [&] {
        return SiluMul(backend, DType::kBFloat16, m, 1000, 1040, NarrowConfig{256, split});
      });
      runner.Run(absl::StrFormat("fused/narrow/rope/m%d/split%d", m, split), [&] {
        PAGODA_RETURN_IF_ERROR(
            Rope(backend, DType::kFloat16, m, {4, 2, 64}, NarrowConfig{512, split}));
        return Rope(backend, DType::kBFloat16, m, {9, 3, 128}, NarrowConfig{1024, split});
      });
    }
  }
  for (const int32_t m : {1, 2, 8}) {
    runner.Run(absl::StrCat("fused/chain/m", m), [&] { return Chain(backend, m); });
  }
  runner.Run("fused/refusals", [&] { return Refusals(backend); });
}

}  // namespace pagoda::kernels::cuda
