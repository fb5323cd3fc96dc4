#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tests/kernels/cuda/device_fixture.h"
#include "tests/reference/layers.h"

// Ops that not every architecture has, rows and elements.

namespace pagoda::kernels::cuda {
namespace {

// Encoded values, decoded.
std::vector<double> RowOf(DType dtype,
                          const std::vector<uint16_t>& x,
                          int64_t begin,
                          int64_t count) {
  std::vector<double> row;
  for (int64_t j = begin; j < begin + count; ++j) row.push_back(DecodeOne(dtype, x[j]));
  return row;
}

void Append(const std::vector<double>& row, std::vector<double>* to) {
  to->insert(to->end(), row.begin(), row.end());
}

absl::Status LayerNormCase(
    CudaBackend& backend, DType dtype, int64_t rows, int64_t width, bool has_bias) {
  const auto x = Encode(dtype, RandomFloats(rows * width, 51, 2.0f));
  const auto weight = RandomFloats(width, 52), bias = RandomFloats(width, 53);
  const Buffer x_memory = Upload(backend, x), y_memory = Poisoned(backend, x.size() * 2);
  const Buffer weight_memory = Upload(backend, weight), bias_memory = Upload(backend, bias);
  PAGODA_RETURN_IF_ERROR(backend.LayerNorm({.x = x_memory.data(),
                                            .weight = weight_memory.as<float>(),
                                            .bias = has_bias ? bias_memory.as<float>() : nullptr,
                                            .y = y_memory.data(),
                                            .rows = rows,
                                            .width = width,
                                            .x_stride = width,
                                            .y_stride = width,
                                            .epsilon = 1e-5f,
                                            .dtype = dtype}));
  std::vector<double> expected;
  for (int64_t i = 0; i < rows; ++i) {
    Append(reference::LayerNorm(
               RowOf(dtype, x, i * width, width),
               {weight.begin(), weight.end()},
               has_bias ? std::vector<double>(bias.begin(), bias.end()) : std::vector<double>(),
               1e-5),
           &expected);
  }
  return ExpectClose("y",
                     Decode(dtype, Download<uint16_t>(backend, y_memory.data(), x.size())),
                     expected,
                     Tolerance(dtype));
}

absl::Status HeadNormCase(CudaBackend& backend, DType dtype, int64_t rows, int32_t head_dim) {
  constexpr int32_t kQHeads = 4, kKvHeads = 2;
  const int64_t stride = (kQHeads + 2 * kKvHeads) * head_dim;
  const auto x = Encode(dtype, RandomFloats(rows * stride, 61, 2.0f));
  const auto q = RandomFloats(head_dim, 62), k = RandomFloats(head_dim, 63);
  const Buffer memory = Upload(backend, x);
  const Buffer q_memory = Upload(backend, q), k_memory = Upload(backend, k);
  PAGODA_RETURN_IF_ERROR(backend.HeadNorm({.qkv = memory.data(),
                                           .rows = rows,
                                           .qkv_stride = stride,
                                           .num_q_heads = kQHeads,
                                           .num_kv_heads = kKvHeads,
                                           .head_dim = head_dim,
                                           .q_weight = q_memory.as<float>(),
                                           .k_weight = k_memory.as<float>(),
                                           .epsilon = 1e-6f,
                                           .weight_offset = 1.0f,
                                           .dtype = dtype}));
  std::vector<double> expected;
  for (int64_t i = 0; i < rows; ++i) {
    for (int32_t h = 0; h < kQHeads + 2 * kKvHeads; ++h) {
      const auto head = RowOf(dtype, x, i * stride + h * head_dim, head_dim);
      const auto& weight = h < kQHeads ? q : k;
      Append(h >= kQHeads + kKvHeads
                 ? head
                 : reference::RmsNorm(head, {weight.begin(), weight.end()}, 1e-6, 1.0),
             &expected);
    }
  }
  return ExpectClose("qkv",
                     Decode(dtype, Download<uint16_t>(backend, memory.data(), x.size())),
                     expected,
                     Tolerance(dtype));
}

absl::Status ActivateCase(
    CudaBackend& backend, DType dtype, Activation activation, bool gated, int64_t width) {
  constexpr int64_t kRows = 5;
  const int64_t x_width = gated ? 2 * width : width;
  const auto x = Encode(dtype, RandomFloats(kRows * x_width, 71, 3.0f));
  const Buffer x_memory = Upload(backend, x), y_memory = Poisoned(backend, kRows * width * 2);
  PAGODA_RETURN_IF_ERROR(backend.Activate({.x = x_memory.data(),
                                           .y = y_memory.data(),
                                           .rows = kRows,
                                           .width = width,
                                           .gated = gated,
                                           .activation = activation,
                                           .dtype = dtype}));
  double (*const functions[])(double) = {reference::Silu, reference::Gelu, reference::GeluTanh};
  std::vector<double> expected;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      const double v = functions[static_cast<int>(activation)](
          static_cast<double>(DecodeOne(dtype, x[i * x_width + j])));
      const double up =
          gated ? static_cast<double>(DecodeOne(dtype, x[i * x_width + width + j])) : 1.0;
      expected.push_back(v * up);
    }
  }
  return ExpectClose("y",
                     Decode(dtype, Download<uint16_t>(backend, y_memory.data(), kRows * width)),
                     expected,
                     Tolerance(dtype));
}

absl::Status AddScaledCase(CudaBackend& backend, DType dtype, int64_t count) {
  const auto x = Encode(dtype, RandomFloats(count, 81)), y = Encode(dtype, RandomFloats(count, 82));
  const Buffer x_memory = Upload(backend, x), y_memory = Upload(backend, y);
  PAGODA_RETURN_IF_ERROR(backend.AddScaled({.x = x_memory.data(),
                                            .y = y_memory.data(),
                                            .count = count,
                                            .scale = 0.25f,
                                            .dtype = dtype}));
  std::vector<double> expected;
  for (int64_t i = 0; i < count; ++i) {
    expected.push_back(static_cast<double>(DecodeOne(dtype, y[i])) +
                       0.25 * static_cast<double>(DecodeOne(dtype, x[i])));
  }
  return ExpectClose("y",
                     Decode(dtype, Download<uint16_t>(backend, y_memory.data(), count)),
                     expected,
                     Tolerance(dtype));
}

absl::Status AddEmbeddingCase(CudaBackend& backend, DType dtype, int64_t hidden) {
  constexpr int64_t kPositions = 50;
  const auto table = Encode(dtype, RandomFloats(kPositions * hidden, 91));
  const std::vector<int32_t> rows = {0, 49, 7};
  const auto y = Encode(dtype, RandomFloats(rows.size() * hidden, 92));
  const Buffer table_memory = Upload(backend, table), rows_memory = Upload(backend, rows);
  const Buffer y_memory = Upload(backend, y);
  PAGODA_RETURN_IF_ERROR(backend.AddEmbedding(
      {.tokens = rows_memory.as<int32_t>(),
       .table = {.dtype = dtype, .data = table_memory.data(), .n = kPositions, .k = hidden},
       .y = y_memory.data(),
       .rows = static_cast<int64_t>(rows.size()),
       .y_dtype = dtype}));
  std::vector<double> expected;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t j = 0; j < hidden; ++j) {
      expected.push_back(static_cast<double>(DecodeOne(dtype, y[i * hidden + j])) +
                         static_cast<double>(DecodeOne(dtype, table[rows[i] * hidden + j])));
    }
  }
  return ExpectClose("y",
                     Decode(dtype, Download<uint16_t>(backend, y_memory.data(), y.size())),
                     expected,
                     Tolerance(dtype));
}

absl::Status AdjustLogitsCase(CudaBackend& backend, float soft_cap) {
  constexpr int64_t kRows = 3, kWidth = 32003, kStride = 32016;
  const auto logits = RandomFloats(kRows * kStride, 95, 40.0f);
  const Buffer memory = Upload(backend, logits);
  PAGODA_RETURN_IF_ERROR(backend.AdjustLogits({.logits = memory.as<float>(),
                                               .rows = kRows,
                                               .width = kWidth,
                                               .stride = kStride,
                                               .scale = 0.5f,
                                               .soft_cap = soft_cap}));
  std::vector<double> expected;
  for (int64_t i = 0; i < kRows * kStride; ++i) {
    double v = static_cast<double>(logits[i]);
    if (i % kStride < kWidth) {
      v *= 0.5;
      if (soft_cap > 0.0f) v = soft_cap * std::tanh(v / soft_cap);
    }
    expected.push_back(v);
  }
  return ExpectClose(
      "logits", Download<float>(backend, memory.data(), logits.size()), expected, 2e-6);
}

}  // namespace

void RunLayersCases(CheckRunner& runner, CudaBackend& backend) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const std::string type(DTypeName(dtype));
    for (const auto& [rows, width] :
         {std::pair<int, int>{1, 4096}, {64, 768}, {3, 12288}, {5, 33}}) {
      for (const bool has_bias : {false, true}) {
        runner.Run(
            absl::StrFormat("layer_norm/%s/%dx%d%s", type, rows, width, has_bias ? "+b" : ""),
            [&, rows = rows, width = width] {
              return LayerNormCase(backend, dtype, rows, width, has_bias);
            });
      }
    }
    for (const int head_dim : {64, 80, 128, 256, 20}) {
      for (const int rows : {1, 70}) {
        runner.Run(absl::StrFormat("head_norm/%s/%dx%d", type, rows, head_dim),
                   [&] { return HeadNormCase(backend, dtype, rows, head_dim); });
      }
    }
    for (const Activation activation :
         {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
      for (const bool gated : {false, true}) {
        for (const int width : {9216, 192, 13}) {
          runner.Run(absl::StrFormat("activate/%s/%d%s/%d",
                                     type,
                                     static_cast<int>(activation),
                                     gated ? "/gated" : "",
                                     width),
                     [&] { return ActivateCase(backend, dtype, activation, gated, width); });
        }
      }
    }
    for (const int count : {8, 4096 * 64, 1001}) {
      runner.Run(absl::StrFormat("add_scaled/%s/%d", type, count),
                 [&] { return AddScaledCase(backend, dtype, count); });
    }
    for (const int hidden : {768, 33}) {
      runner.Run(absl::StrFormat("add_embedding/%s/%d", type, hidden),
                 [&] { return AddEmbeddingCase(backend, dtype, hidden); });
    }
  }
  for (const float soft_cap : {0.0f, 30.0f}) {
    runner.Run(absl::StrFormat("adjust_logits/%g", soft_cap),
               [&] { return AdjustLogitsCase(backend, soft_cap); });
  }
}

}  // namespace pagoda::kernels::cuda
