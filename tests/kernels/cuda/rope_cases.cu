#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/attention/attention.h"
#include "tests/kernels/cuda/attention_cases.h"

namespace pagoda::kernels::cuda::test {
namespace {

struct RopeCase {
  DType dtype = DType::kBFloat16;
  int32_t head_dim = 128;
  int32_t rotary_dim = 128;  // 0: none
  int32_t num_q_heads = 8;
  int32_t num_kv_heads = 2;
  int32_t block_size = 64;
  int32_t padding = 0;
  int32_t num_rows = 37;
  float k_scale = 1;
  float v_scale = 1;
};

std::string RunRope(const RopeCase& c, std::string* note) {
  const auto to_bits = [&](float x) {
    return c.dtype == DType::kBFloat16 ? BFloat16::FromFloat(x).bits : Float16::FromFloat(x).bits;
  };
  const auto to_float = [&](uint16_t x) {
    return c.dtype == DType::kBFloat16 ? BFloat16{x}.ToFloat() : Float16{x}.ToFloat();
  };
  const int32_t heads = c.num_q_heads + 2 * c.num_kv_heads;
  const int64_t stride = int64_t{heads} * c.head_dim + c.padding;
  constexpr int32_t kPositions = 300, kBlocks = 9;
  std::mt19937 random(3);
  std::vector<uint16_t> qkv(c.num_rows * stride);
  for (auto& x : qkv) x = to_bits(RandomNormal(random()));
  std::vector<float> table(kPositions * std::max(1, c.rotary_dim));
  const int32_t half = c.rotary_dim / 2;
  for (int p = 0; p < kPositions; ++p) {
    for (int i = 0; i < half; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / c.rotary_dim);
      table[p * c.rotary_dim + i] = static_cast<float>(std::cos(angle));
      table[p * c.rotary_dim + half + i] = static_cast<float>(std::sin(angle));
    }
  }
  std::vector<int32_t> positions, slots(kBlocks * c.block_size);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  slots.resize(c.num_rows);
  slots[c.num_rows / 2] = -1;  // padding
  for (int i = 0; i < c.num_rows; ++i) positions.push_back(random() % kPositions);
  const int64_t head_stride = int64_t{c.block_size} * c.head_dim;
  KvCacheView cache = {.dtype = c.dtype,
                       .num_blocks = kBlocks,
                       .block_size = c.block_size,
                       .num_kv_heads = c.num_kv_heads,
                       .head_dim = c.head_dim,
                       .block_stride = 2 * c.num_kv_heads * head_stride,
                       .v_offset = c.num_kv_heads * head_stride,
                       .head_stride = head_stride,
                       .k_scale = c.k_scale,
                       .v_scale = c.v_scale};
  DeviceBuffer pool(kBlocks * cache.block_stride * 2);
  pool.Fill(0xff);
  cache.data = pool.data();
  DeviceBuffer device_qkv = DeviceBuffer::From(qkv), device_table = DeviceBuffer::From(table),
               device_positions = DeviceBuffer::From(positions),
               device_slots = DeviceBuffer::From(slots);
  const AttentionBatch batch = {.num_seqs = 1,
                                .num_rows = c.num_rows,
                                .positions = device_positions.as<int32_t>(),
                                .kv_slots = device_slots.as<int32_t>()};
  const RopeKvWriteParams params = {
      .qkv = device_qkv.data(),
      .qkv_stride = stride,
      .cos_sin = c.rotary_dim > 0 ? device_table.as<float>() : nullptr,
      .max_positions = kPositions,
      .rotary_dim = c.rotary_dim,
      .num_q_heads = c.num_q_heads,
      .batch = &batch,
      .cache = cache,
      .dtype = c.dtype};
  if (absl::Status status = LaunchRopeKvWrite(params, false, nullptr); !status.ok())
    return status.ToString();
  CheckCuda(cudaDeviceSynchronize(), "rope");
  const std::vector<uint16_t> out = device_qkv.To<uint16_t>(qkv.size());
  const std::vector<uint16_t> written = pool.To<uint16_t>(pool.bytes() / 2);
  std::vector<uint16_t> expected_pool(written.size(), 0xffff);
  double worst = 0;
  const auto check = [&](uint16_t got, double want) {
    worst = std::max(worst, std::abs(to_float(got) - want) / (std::abs(want) + 0.05));
  };
  for (int row = 0; row < c.num_rows; ++row) {
    for (int head = 0; head < heads; ++head) {
      const bool is_k = head >= c.num_q_heads && head < c.num_q_heads + c.num_kv_heads;
      const bool is_v = head >= c.num_q_heads + c.num_kv_heads;
      for (int i = 0; i < c.head_dim; ++i) {
        const int64_t at = row * stride + head * c.head_dim + i;
        double want = to_float(qkv[at]);
        if (!is_v && i < 2 * half) {
          const float* angles = &table[positions[row] * c.rotary_dim];
          const int j = i % half;
          const double a = to_float(qkv[at - i + j]), b = to_float(qkv[at - i + j + half]);
          want = i < half ? a * angles[j] - b * angles[half + j]
                          : b * angles[j] + a * angles[half + j];
        }
        check(out[at], want);
        if ((is_k || is_v) && slots[row] >= 0) {
          const int kv_head = (head - c.num_q_heads) % c.num_kv_heads;
          const int64_t place = slots[row] / c.block_size * cache.block_stride +
                                (is_v ? cache.v_offset : 0) + kv_head * head_stride +
                                slots[row] % c.block_size * c.head_dim + i;
          check(written[place], want / (is_v ? c.v_scale : c.k_scale));
          expected_pool[place] = written[place];
        }
      }
    }
    for (int64_t i = heads * c.head_dim; i < stride; ++i) {
      if (out[row * stride + i] != qkv[row * stride + i]) return "wrote between rows";
    }
  }
  if (expected_pool != written) return "wrote to slots that are no row's";
  *note = absl::StrFormat(" worst %.2e", worst);
  return worst < (c.dtype == DType::kBFloat16 ? 6e-3 : 1e-3) ? "" : "wrong";
}

}  // namespace

void AddRopeCases(std::vector<Case>* cases) {
  const auto add = [&](const std::string& what, const RopeCase& c) {
    cases->push_back(
        {absl::StrCat("rope/", what), [=](std::string* note) { return RunRope(c, note); }});
  };
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const std::string type = dtype == DType::kBFloat16 ? "bf16" : "fp16";
    add(absl::StrCat("plain_", type), {.dtype = dtype});
    add(absl::StrCat("partial_", type),
        {.dtype = dtype, .head_dim = 80, .rotary_dim = 32, .block_size = 16});
    add(absl::StrCat("odd_", type),
        {.dtype = dtype,
         .head_dim = 64,
         .rotary_dim = 20,
         .num_q_heads = 3,
         .num_kv_heads = 1,
         .padding = 3});
    add(absl::StrCat("none_", type),
        {.dtype = dtype, .head_dim = 256, .rotary_dim = 0, .padding = 8});
  }
  add("scales", {.head_dim = 96, .rotary_dim = 96, .k_scale = 0.5f, .v_scale = 4});
}

}  // namespace pagoda::kernels::cuda::test
