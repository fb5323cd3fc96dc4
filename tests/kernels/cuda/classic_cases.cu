#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/attention/paged_attention_classic.h"
#include "tests/kernels/cuda/attention_cases.h"

namespace pagoda::kernels::cuda::test {
namespace {

using Sequences = PagedData::Sequences;

// The batch's keys and values written by the cache-write kernel into the
// classic layout.

std::string RunClassic(const PagedShape& shape,
                       const Sequences& sequences,
                       int version,
                       std::string* note) {
  PagedData data(shape, sequences, 77);
  const int32_t dim = shape.head_dim, heads = shape.num_kv_heads, width = dim * heads;
  const std::vector<uint16_t> pool = data.pool().To<uint16_t>(data.pool().bytes() / 2);
  std::vector<uint16_t> k, v;
  std::vector<int32_t> slots;
  int32_t longest = 0;
  for (int seq = 0; seq < data.num_seqs(); ++seq) {
    longest = std::max(longest, data.context_lens()[seq]);
    for (int token = 0; token < data.context_lens()[seq]; ++token) {
      const int64_t block = data.tables()[seq * data.table_stride() + token / shape.block_size];
      slots.push_back(static_cast<int32_t>(block * shape.block_size + token % shape.block_size));
      for (int head = 0; head < heads; ++head) {
        const int64_t at = block * data.cache().block_stride + head * data.cache().head_stride +
                           token % shape.block_size * dim;
        k.insert(k.end(), pool.begin() + at, pool.begin() + at + dim);
        v.insert(v.end(),
                 pool.begin() + at + data.cache().v_offset,
                 pool.begin() + at + data.cache().v_offset + dim);
      }
    }
  }
  slots.push_back(-1);  // padding writes nothing
  k.resize(k.size() + width, 0x3c00);
  v.resize(v.size() + width, 0x3c00);
  const size_t cache_bytes = data.cache().num_blocks * shape.block_size * width * 2;
  DeviceBuffer k_cache(cache_bytes), v_cache(cache_bytes);
  k_cache.Fill(0xff);
  v_cache.Fill(0xff);
  DeviceBuffer device_k = DeviceBuffer::From(k), device_v = DeviceBuffer::From(v),
               device_slots = DeviceBuffer::From(slots);
  ClassicKvCache cache = {.k = k_cache.data(),
                          .v = v_cache.data(),
                          .num_blocks = data.cache().num_blocks,
                          .block_size = shape.block_size,
                          .num_kv_heads = heads,
                          .head_dim = dim,
                          .dtype = shape.dtype};
  absl::Status status = LaunchClassicCacheWrite({.k = device_k.data(),
                                                 .v = device_v.data(),
                                                 .kv_stride = width,
                                                 .num_tokens = static_cast<int32_t>(slots.size()),
                                                 .slots = device_slots.as<int32_t>(),
                                                 .cache = cache},
                                                nullptr);
  cache.k_scale = shape.k_scale;  // what was written is taken as quantised
  cache.v_scale = shape.v_scale;
  const AttentionLaunch launch = data.Launch();
  const ClassicAttentionParams params = {.out = data.out().data(),
                                         .q = launch.params->q,
                                         .q_stride = launch.params->q_stride,
                                         .num_seqs = data.num_seqs(),
                                         .num_q_heads = shape.num_q_heads,
                                         .cache = cache,
                                         .block_tables = launch.params->batch->block_tables,
                                         .block_table_stride = data.table_stride(),
                                         .context_lens = launch.params->batch->context_lens,
                                         .max_context_len = longest,
                                         .scale = data.scale(),
                                         .alibi_slopes = launch.params->alibi_slopes};
  data.out().Fill(0xfe);
  DeviceBuffer workspace(ClassicWorkspaceBytes(data.num_seqs(), shape.num_q_heads, dim, longest));
  workspace.Fill(0xff);
  status.Update(version == 1 ? LaunchPagedAttentionClassicV1(params, nullptr)
                             : LaunchPagedAttentionClassicV2(params, workspace.data(), nullptr));
  if (!status.ok()) return status.ToString();
  CheckCuda(cudaDeviceSynchronize(), "classic");
  return Judge(data,
               data.HalvesToFloats(data.out().To<uint16_t>(data.out_elements())),
               data.HostReference(),
               note);
}

}  // namespace

void AddClassicCases(std::vector<Case>* cases) {
  const auto add = [&](const std::string& what,
                       const PagedShape& shape,
                       const Sequences& sequences,
                       int version) {
    const std::string name = absl::StrCat("classic_v", version, "/", what, "/", ShapeName(shape));
    cases->push_back(
        {name, [=](std::string* note) { return RunClassic(shape, sequences, version, note); }});
  };
  for (const int version : {1, 2}) {
    for (const int32_t dim : {64, 80, 96, 128, 256}) {
      add("edges",
          {.head_dim = dim, .num_q_heads = 4, .num_kv_heads = 2, .block_size = dim == 96 ? 32 : 16},
          {{1, 1}, {1, 16}, {1, 17}, {1, 511}, {1, 512}, {1, 513}, {1, 1300}},
          version);
    }
    add("fp16",
        {.dtype = DType::kFloat16,
         .num_q_heads = 8,
         .num_kv_heads = 2,
         .block_size = 32,
         .alibi = true,
         .k_scale = 0.5f,
         .v_scale = 2,
         .query_padding = 8},
        {{1, 5}, {1, 700}},
        version);
  }
}

}  // namespace pagoda::kernels::cuda::test
