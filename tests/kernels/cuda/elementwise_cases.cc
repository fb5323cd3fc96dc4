#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tests/kernels/cuda/device_fixture.h"
#include "tests/reference/layers.h"

namespace pagoda::kernels::cuda {
namespace {

std::vector<double> ToDouble(const std::vector<float>& v) { return {v.begin(), v.end()}; }

struct NormCase {
  int64_t rows, width;
  int64_t padding = 0;  // elements between rows
  int64_t shift = 0;    // elements by which the first row is off alignment
  bool in_place = false;
};

absl::Status RmsNormCase(CudaBackend& backend, DType dtype, const NormCase& c) {
  const int64_t stride = c.width + c.padding;
  const auto x = Encode(dtype, RandomFloats(c.shift + c.rows * stride, 11, 2.0f));
  const auto weight = RandomFloats(c.width, 12);
  const Buffer x_memory = Upload(backend, x);
  const Buffer weight_memory = Upload(backend, weight);
  const Buffer y_memory = Poisoned(backend, x.size() * 2);
  uint16_t* y = c.in_place ? x_memory.as<uint16_t>() : y_memory.as<uint16_t>();
  PAGODA_RETURN_IF_ERROR(backend.RmsNorm({.x = x_memory.as<uint16_t>() + c.shift,
                                          .weight = weight_memory.as<float>(),
                                          .y = y + c.shift,
                                          .rows = c.rows,
                                          .width = c.width,
                                          .x_stride = stride,
                                          .y_stride = stride,
                                          .epsilon = 1e-5f,
                                          .weight_offset = 0.5f,
                                          .dtype = dtype}));
  const auto out = Decode(dtype, Download<uint16_t>(backend, y, x.size()));
  std::vector<float> got;
  std::vector<double> expected;
  for (int64_t i = 0; i < c.rows; ++i) {
    std::vector<double> row;
    for (int64_t j = 0; j < c.width; ++j) {
      row.push_back(DecodeOne(dtype, x[c.shift + i * stride + j]));
      got.push_back(out[c.shift + i * stride + j]);
    }
    const auto y_row = reference::RmsNorm(row, ToDouble(weight), 1e-5, 0.5);
    expected.insert(expected.end(), y_row.begin(), y_row.end());
  }
  return ExpectClose("y", got, expected, Tolerance(dtype));
}

absl::Status SiluMulCase(CudaBackend& backend, DType dtype, int64_t rows, int64_t width) {
  const auto x = Encode(dtype, RandomFloats(rows * 2 * width, 21, 4.0f));
  const Buffer x_memory = Upload(backend, x);
  const Buffer y_memory = Poisoned(backend, rows * width * 2);
  PAGODA_RETURN_IF_ERROR(backend.SiluMul({.gate_up = x_memory.data(),
                                          .y = y_memory.data(),
                                          .rows = rows,
                                          .width = width,
                                          .dtype = dtype}));
  const auto out = Decode(dtype, Download<uint16_t>(backend, y_memory.data(), rows * width));
  std::vector<double> expected;
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<double> row;
    for (int64_t j = 0; j < 2 * width; ++j) row.push_back(DecodeOne(dtype, x[i * 2 * width + j]));
    const auto y_row = reference::SiluMul(row);
    expected.insert(expected.end(), y_row.begin(), y_row.end());
  }
  return ExpectClose("y", out, expected, Tolerance(dtype));
}

absl::Status EmbeddingCase(CudaBackend& backend, DType dtype, int64_t hidden, float scale) {
  constexpr int64_t kVocab = 301;
  const auto table = Encode(dtype, RandomFloats(kVocab * hidden, 31));
  const std::vector<int32_t> tokens = {0, 300, 7, -5, 100000, 299, 7};
  const Buffer table_memory = Upload(backend, table);
  const Buffer tokens_memory = Upload(backend, tokens);
  const Buffer y_memory = Poisoned(backend, tokens.size() * hidden * 2);
  PAGODA_RETURN_IF_ERROR(backend.Embedding(
      {.tokens = tokens_memory.as<int32_t>(),
       .table = {.dtype = dtype, .data = table_memory.data(), .n = kVocab, .k = hidden},
       .y = y_memory.data(),
       .rows = static_cast<int64_t>(tokens.size()),
       .scale = scale,
       .y_dtype = dtype}));
  const auto out =
      Decode(dtype, Download<uint16_t>(backend, y_memory.data(), tokens.size() * hidden));
  std::vector<double> expected;
  for (const int32_t token : tokens) {
    const int64_t row = std::clamp<int64_t>(token, 0, kVocab - 1);
    for (int64_t j = 0; j < hidden; ++j) {
      expected.push_back(static_cast<double>(DecodeOne(dtype, table[row * hidden + j])) * scale);
    }
  }
  PAGODA_RETURN_IF_ERROR(ExpectClose("y", out, expected, scale == 1.0f ? 0.0 : Tolerance(dtype)));

  // A part that begins with id 7: ids of other parts give zeros.
  PAGODA_RETURN_IF_ERROR(backend.Embedding(
      {.tokens = tokens_memory.as<int32_t>(),
       .table = {.dtype = dtype, .data = table_memory.data(), .n = kVocab, .k = hidden},
       .y = y_memory.data(),
       .rows = static_cast<int64_t>(tokens.size()),
       .y_dtype = dtype,
       .first_id = 7,
       .is_part = true}));
  const auto part =
      Decode(dtype, Download<uint16_t>(backend, y_memory.data(), tokens.size() * hidden));
  expected.clear();
  for (const int32_t token : tokens) {
    const bool is_there = token >= 7 && token < 7 + kVocab;
    for (int64_t j = 0; j < hidden; ++j) {
      expected.push_back(is_there ? DecodeOne(dtype, table[(token - 7) * hidden + j]) : 0.0);
    }
  }
  return ExpectClose("y of a part", part, expected, 0.0);
}

absl::Status ResolveTokensCase(CudaBackend& backend) {
  const std::vector<int32_t> host = {10, 11, 12, 13, 14};
  const std::vector<int32_t> slots = {-1, 2, -1, 0, 99};
  const std::vector<int32_t> last = {500, 501, 502};
  const Buffer h = Upload(backend, host), s = Upload(backend, slots), l = Upload(backend, last);
  const Buffer out = Poisoned(backend, host.size() * 4);
  PAGODA_RETURN_IF_ERROR(backend.ResolveTokens({.host_tokens = h.as<int32_t>(),
                                                .source_slots = s.as<int32_t>(),
                                                .last_tokens = l.as<int32_t>(),
                                                .tokens = out.as<int32_t>(),
                                                .rows = 5,
                                                .num_slots = 3}));
  return ExpectTrue(
      Download<int32_t>(backend, out.data(), 5) == std::vector<int32_t>({10, 502, 12, 500, 14}),
      "tokens");
}

absl::Status ScatterCase(CudaBackend& backend) {
  const std::vector<int32_t> pairs = {3, 30, 0, -5, 99, 1, -1, 2, 4, 40};
  const std::vector<int32_t> before = {10, 11, 12, 13, 14};
  const Buffer p = Upload(backend, pairs), to = Upload(backend, before);
  PAGODA_RETURN_IF_ERROR(
      backend.Scatter({.pairs = p.as<int32_t>(), .to = to.as<int32_t>(), .count = 5, .size = 5}));
  return ExpectTrue(
      Download<int32_t>(backend, to.data(), 5) == std::vector<int32_t>({-5, 11, 12, 30, 40}),
      "scattered");
}

absl::Status CopyBlocksCase(CudaBackend& backend, int64_t block_bytes) {
  constexpr int64_t kLayers = 3, kBlocks = 7;
  std::vector<uint8_t> pool(kLayers * kBlocks * block_bytes);
  const auto floats = RandomFloats(pool.size() / 4 + 1, 51);
  std::memcpy(pool.data(), floats.data(), pool.size());
  // Blocks that there are not are passed over.
  const std::vector<int32_t> pairs = {6, 0, 2, 5, 2, 1, 7, 3, 4, -1};
  const Buffer memory = Upload(backend, pool), p = Upload(backend, pairs);
  PAGODA_RETURN_IF_ERROR(backend.CopyBlocks({.data = memory.data(),
                                             .pairs = p.as<int32_t>(),
                                             .count = 5,
                                             .num_layers = kLayers,
                                             .num_blocks = kBlocks,
                                             .block_bytes = block_bytes}));
  std::vector<uint8_t> expected = pool;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int i = 0; i < 3; ++i) {
      const uint8_t* const from = pool.data() + (layer * kBlocks + pairs[2 * i]) * block_bytes;
      std::copy_n(
          from, block_bytes, expected.begin() + (layer * kBlocks + pairs[2 * i + 1]) * block_bytes);
    }
  }
  return ExpectTrue(Download<uint8_t>(backend, memory.data(), pool.size()) == expected, "pool");
}

absl::Status GatherRowsCase(CudaBackend& backend, DType dtype, int64_t width) {
  const size_t bytes = DTypeBytes(dtype);
  const auto floats = RandomFloats(50 * width * bytes / 4 + 1, 41);
  std::vector<uint8_t> x(50 * width * bytes);
  std::memcpy(x.data(), floats.data(), x.size());
  const std::vector<int32_t> indices = {49, 0, 7, 7, 31};
  const Buffer x_memory = Upload(backend, x), i_memory = Upload(backend, indices);
  const Buffer y_memory = Poisoned(backend, indices.size() * width * bytes);
  PAGODA_RETURN_IF_ERROR(backend.GatherRows({.x = x_memory.data(),
                                             .indices = i_memory.as<int32_t>(),
                                             .y = y_memory.data(),
                                             .rows = 5,
                                             .width = width,
                                             .dtype = dtype}));
  std::vector<uint8_t> expected;
  for (const int32_t i : indices) {
    expected.insert(
        expected.end(), x.begin() + i * width * bytes, x.begin() + (i + 1) * width * bytes);
  }
  return ExpectTrue(Download<uint8_t>(backend, y_memory.data(), expected.size()) == expected,
                    "rows");
}

}  // namespace

void RunElementwiseCases(CheckRunner& runner, CudaBackend& backend) {
  runner.Run("resolve_tokens", [&] { return ResolveTokensCase(backend); });
  runner.Run("scatter", [&] { return ScatterCase(backend); });
  for (const int64_t bytes : {2, 34, 1024, 65536, 262160}) {
    runner.Run(absl::StrFormat("copy_blocks/%d", bytes),
               [&] { return CopyBlocksCase(backend, bytes); });
  }
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const std::string type(DTypeName(dtype));
    for (const NormCase c : {NormCase{1, 4096},
                             NormCase{64, 4096},
                             NormCase{5, 128, 64},
                             NormCase{7, 64},
                             NormCase{3, 576},
                             NormCase{2, 8192},
                             NormCase{2, 12288},
                             NormCase{2, 20480},
                             NormCase{3, 1001, 3},
                             NormCase{3, 512, 0, 1},
                             NormCase{4, 4096, 8, 0, true},
                             NormCase{9, 96, 32, 0, true}}) {
      runner.Run(absl::StrFormat("rms_norm/%s/%dx%d+%d@%d%s",
                                 type,
                                 c.rows,
                                 c.width,
                                 c.padding,
                                 c.shift,
                                 c.in_place ? "/in_place" : ""),
                 [&] { return RmsNormCase(backend, dtype, c); });
    }
    for (const auto& [rows, width] :
         {std::pair<int, int>{1, 14336}, {64, 14336}, {3, 24}, {2000, 1536}, {5, 13}}) {
      runner.Run(
          absl::StrFormat("silu_mul/%s/%dx%d", type, rows, width),
          [&, rows = rows, width = width] { return SiluMulCase(backend, dtype, rows, width); });
    }
    for (const int hidden : {4096, 576, 40, 33}) {
      for (const float scale : {1.0f, 3.25f}) {
        runner.Run(absl::StrFormat("embedding/%s/%d*%g", type, hidden, scale),
                   [&] { return EmbeddingCase(backend, dtype, hidden, scale); });
      }
    }
    for (const int width : {4096, 13}) {
      runner.Run(absl::StrFormat("gather_rows/%s/%d", type, width),
                 [&] { return GatherRowsCase(backend, dtype, width); });
    }
  }
  runner.Run("gather_rows/float32/7", [&] { return GatherRowsCase(backend, DType::kFloat32, 7); });
}

}  // namespace pagoda::kernels::cuda
