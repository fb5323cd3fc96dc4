// Attention kernels against a reference in double precision. Usage: cuda_attention_test [part of a
// case's name ...]

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/paged_attention_classic.h"
#include "tests/kernels/cuda/case_runner.h"
#include "tests/kernels/cuda/paged_data.cuh"

namespace pagoda::kernels::cuda::test {
namespace {

using Sequences = PagedData::Sequences;

constexpr uint16_t kUntouched = 0xfefe;  // a huge negative number in both types, not NaN

struct Difference {
  double total = 0;  // |out - ref| / |ref|
  double worst = 0;  // the same of one row and head
  int64_t worst_at = -1;
  int64_t bad = -1;  // first element that is not finite
};

Difference Compare(const std::vector<float>& out,
                   const std::vector<float>& reference,
                   int32_t head_dim) {
  Difference difference;
  double error = 0, norm = 0;
  for (size_t row = 0; row < out.size() / head_dim; ++row) {
    double row_error = 0, row_norm = 0;
    for (int i = 0; i < head_dim; ++i) {
      const double a = out[row * head_dim + i], b = reference[row * head_dim + i];
      if (!std::isfinite(a) && difference.bad < 0) difference.bad = row * head_dim + i;
      row_error += (a - b) * (a - b);
      row_norm += b * b;
    }
    error += row_error;
    norm += row_norm;
    const double relative = std::sqrt(row_error / (row_norm + 1e-30));
    if (!(relative <= difference.worst)) {
      difference.worst = relative;
      difference.worst_at = row;
    }
  }
  difference.total = std::sqrt(error / (norm + 1e-30));
  return difference;
}

std::string Judge(const PagedData& data,
                  const std::vector<float>& out,
                  const std::vector<float>& reference,
                  std::string* note) {
  const bool bf16 = data.shape().dtype == DType::kBFloat16;
  const double total_limit = bf16 ? 6e-3 : 1e-3;
  const double row_limit = bf16 ? 2e-2 : 4e-3;
  const Difference d = Compare(out, reference, data.shape().head_dim);
  *note = absl::StrFormat(" error %.2e, worst row %.2e", d.total, d.worst);
  const int64_t heads = data.shape().num_q_heads;
  if (d.bad >= 0) {
    return absl::StrFormat("not finite: row %d head %d element %d",
                           d.bad / data.shape().head_dim / heads,
                           d.bad / data.shape().head_dim % heads,
                           d.bad % data.shape().head_dim);
  }
  if (!(d.total <= total_limit) || !(d.worst <= row_limit)) {
    return absl::StrFormat("wrong: worst row %d head %d", d.worst_at / heads, d.worst_at % heads);
  }
  return "";
}

enum class Path { kDecode, kPrefillMma, kPrefillWgmma, kMixed };

struct Options {
  Path path = Path::kDecode;
  int32_t min_tiles_per_split = 1;
  bool whole_items = false;
  bool programmatic = false;
  bool host_reference = true;
  int32_t repeats = 3;
};

// Runs the kernels `repeats` times into poisoned outputs; all runs must agree to the bit.
std::string RunPaged(const PagedShape& shape,
                     const Sequences& sequences,
                     const Options& options,
                     std::string* note) {
  PagedData data(shape, sequences, 1234);
  std::optional<int32_t> max_decode_rows;
  if (options.path == Path::kDecode) max_decode_rows = INT32_MAX;
  if (options.path == Path::kPrefillMma || options.path == Path::kPrefillWgmma) max_decode_rows = 0;
  if (absl::Status status =
          data.Plan(max_decode_rows, options.min_tiles_per_split, options.whole_items);
      !status.ok()) {
    return status.ToString();
  }
  AttentionLaunch launch = data.Launch();
  launch.programmatic = options.programmatic;
  launch.prefill_kernel = options.path == Path::kPrefillMma     ? PrefillKernel::kMma
                          : options.path == Path::kPrefillWgmma ? PrefillKernel::kWgmma
                                                                : PrefillKernel::kAuto;
  const size_t elements = data.out_elements();
  std::vector<uint16_t> first;
  for (int i = 0; i < options.repeats; ++i) {
    data.out().Fill(kUntouched & 0xff);
    absl::Status status;
    if (options.path == Path::kDecode || options.path == Path::kMixed) {
      status.Update(LaunchPagedAttentionDecode(launch, nullptr));
    }
    if (options.path != Path::kDecode) status.Update(LaunchPagedAttentionPrefill(launch, nullptr));
    if (!status.ok()) return status.ToString();
    CheckCuda(cudaDeviceSynchronize(), "attention");
    const std::vector<uint16_t> bits = data.out().To<uint16_t>(data.out().bytes() / 2);
    for (size_t j = elements; j < bits.size(); ++j) {
      if (bits[j] != kUntouched)
        return absl::StrFormat("wrote %d elements past the end", j - elements + 1);
    }
    if (i == 0) {
      first = bits;
    } else if (bits != first) {
      size_t at = 0;
      while (bits[at] == first[at]) ++at;
      return absl::StrFormat("run %d differs from run 0 first at element %d: a race", i, at);
    }
  }
  first.resize(elements);
  const std::vector<float> reference =
      options.host_reference ? data.HostReference() : data.Reference();
  return Judge(data, data.HalvesToFloats(first), reference, note);
}

// The device's reference is trusted for large cases because it agrees with the host's here.
std::string RunReference(std::string* note) {
  PagedShape shape = {.head_dim = 80,
                      .num_q_heads = 6,
                      .num_kv_heads = 2,
                      .block_size = 16,
                      .window = 50,
                      .soft_cap = 9,
                      .alibi = true,
                      .k_scale = 0.5f,
                      .v_scale = 2};
  const PagedData data(shape, {{1, 70}, {5, 5}, {3, 129}}, 1);
  const Difference d = Compare(data.Reference(), data.HostReference(), shape.head_dim);
  *note = absl::StrFormat(" error %.2e", d.total);
  return d.worst < 1e-5 && d.bad < 0 ? "" : "references differ";
}

std::string RunGraph(std::string* note) {
  // One graph, replayed with other lengths, tables and plans behind the same addresses.
  const PagedShape shape = {};
  const Sequences sequences = {{1, 5000}, {1, 64}, {1, 1}, {1, 777}};
  PagedData data(shape, sequences, 5);
  data.Plan(std::nullopt, 2).IgnoreError();
  AttentionLaunch launch = data.Launch();
  launch.programmatic = true;
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < 3; ++i) {
    if (absl::Status status = LaunchPagedAttentionDecode(launch, stream); !status.ok())
      return status.ToString();
  }
  cudaGraph_t graph;
  CheckCuda(cudaStreamEndCapture(stream, &graph), "end capture");
  cudaGraphExec_t exec;
  CheckCuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  for (const int32_t cut : {0, 4000, 4937}) {
    // Shorter contexts of the same cache: rows move to earlier positions.
    std::vector<int32_t> lens = data.context_lens();
    lens[0] -= cut;
    std::vector<char> plan(data.plan_shape().size_bytes());
    absl::Status status = MakeAttentionPlan(
        data.plan_shape(), {.row_offsets = data.row_offsets(), .context_lens = lens}, plan.data());
    if (!status.ok()) return status.ToString();
    CheckCuda(cudaMemcpy(
                  const_cast<void*>(launch.plan), plan.data(), plan.size(), cudaMemcpyHostToDevice),
              "plan");
    CheckCuda(cudaMemcpy(const_cast<int32_t*>(launch.params->batch->context_lens),
                         lens.data(),
                         lens.size() * 4,
                         cudaMemcpyHostToDevice),
              "lens");
    data.out().Fill(0xfe);
    CheckCuda(cudaDeviceSynchronize(), "before replay");
    CheckCuda(cudaGraphLaunch(exec, stream), "launch");
    CheckCuda(cudaStreamSynchronize(stream), "replay");
    const std::vector<float> out =
        data.HalvesToFloats(data.out().To<uint16_t>(data.out_elements()));
    const std::vector<float> reference = data.Reference();
    if (std::string error = Judge(data, out, reference, note); !error.empty()) {
      return absl::StrCat("after cutting ", cut, ": ", error);
    }
  }
  return "";
}

std::string RunRefusals(std::string*) {
  PagedData data({}, {{1, 100}}, 5);
  AttentionLaunch launch = data.Launch();
  PagedAttentionParams params = *launch.params;
  launch.params = &params;
  params.cache.head_dim = 72;
  const absl::Status dim = LaunchPagedAttentionDecode(launch, nullptr);
  if (dim.code() != absl::StatusCode::kUnimplemented || !absl::StrContains(dim.message(), "72") ||
      !absl::StrContains(dim.message(), "64, 80, 96, 128, 256")) {
    return absl::StrCat("head_dim 72: ", dim.ToString());
  }
  params = *data.Launch().params;
  params.cache.block_size = 24;
  if (LaunchPagedAttentionPrefill(launch, nullptr).code() != absl::StatusCode::kUnimplemented)
    return "block_size 24";
  params = *data.Launch().params;
  params.dtype = params.cache.dtype = DType::kFloat32;
  if (LaunchPagedAttentionDecode(launch, nullptr).code() != absl::StatusCode::kUnimplemented)
    return "float32";
  ClassicAttentionParams classic = {.num_q_heads = 4,
                                    .cache = {.block_size = 16, .num_kv_heads = 4, .head_dim = 64}};
  classic.blocksparse_vert_stride = 2;
  if (LaunchPagedAttentionClassicV1(classic, nullptr).code() != absl::StatusCode::kUnimplemented)
    return "block-sparse";
  classic.blocksparse_vert_stride = 0;
  classic.max_context_len = 1 << 20;
  if (LaunchPagedAttentionClassicV1(classic, nullptr).code() !=
      absl::StatusCode::kResourceExhausted)
    return "long context";
  return "";
}

// ---- Classic kernels: the batch's keys and values written by the cache-write kernel into the
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

// ---- Rope and KV write.

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

// ---- The list.

const Sequences kDecodeEdges = {{1, 1},
                                {1, 2},
                                {1, 15},
                                {1, 16},
                                {1, 17},
                                {1, 63},
                                {1, 64},
                                {1, 65},
                                {1, 127},
                                {1, 128},
                                {1, 129},
                                {1, 500},
                                {1, 1000}};
const Sequences kPrefillEdges = {{1, 1},
                                 {2, 2},
                                 {31, 31},
                                 {32, 32},
                                 {33, 33},
                                 {5, 64},
                                 {64, 65},
                                 {127, 127},
                                 {128, 256},
                                 {129, 300},
                                 {7, 513}};

std::string PathName(Path path) {
  switch (path) {
    case Path::kDecode:
      return "decode";
    case Path::kPrefillMma:
      return "prefill_mma";
    case Path::kPrefillWgmma:
      return "prefill_wgmma";
    default:
      return "mixed";
  }
}

class CaseList {
 public:
  void Paged(absl::string_view what,
             const PagedShape& shape,
             const Sequences& sequences,
             const Options& options) {
    const std::string name = absl::StrFormat("%s/%s/%s_d%d_%dx%d_b%d",
                                             PathName(options.path),
                                             what,
                                             shape.dtype == DType::kBFloat16 ? "bf16" : "fp16",
                                             shape.head_dim,
                                             shape.num_q_heads,
                                             shape.num_kv_heads,
                                             shape.block_size);
    cases.push_back(
        {name, [=](std::string* note) { return RunPaged(shape, sequences, options, note); }});
  }
  void Classic(absl::string_view what,
               const PagedShape& shape,
               const Sequences& sequences,
               int version) {
    const std::string name = absl::StrFormat("classic_v%d/%s/%s_d%d_%dx%d_b%d",
                                             version,
                                             what,
                                             shape.dtype == DType::kBFloat16 ? "bf16" : "fp16",
                                             shape.head_dim,
                                             shape.num_q_heads,
                                             shape.num_kv_heads,
                                             shape.block_size);
    cases.push_back(
        {name, [=](std::string* note) { return RunClassic(shape, sequences, version, note); }});
  }
  void Rope(absl::string_view what, const RopeCase& c) {
    cases.push_back(
        {absl::StrCat("rope/", what), [=](std::string* note) { return RunRope(c, note); }});
  }

  std::vector<Case> cases;
};

void AddDecode(CaseList& list) {
  const Options options = {.path = Path::kDecode};
  list.Paged("plain", {.num_q_heads = 8, .num_kv_heads = 2}, {{1, 64}}, options);
  list.Paged("plain", {.num_q_heads = 8, .num_kv_heads = 2}, kDecodeEdges, options);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t dim : {64, 80, 96, 128, 256}) {
      list.Paged("edges",
                 {.dtype = dtype,
                  .head_dim = dim,
                  .num_q_heads = 4,
                  .num_kv_heads = 1,
                  .block_size = dim == 80 ? 16 : 64},
                 kDecodeEdges,
                 options);
    }
  }
  for (const int32_t block_size : {16, 32, 64, 128}) {
    list.Paged("blocks",
               {.num_q_heads = 8,
                .num_kv_heads = 2,
                .block_size = block_size,
                .head_padding = 64,
                .query_padding = 40},
               kDecodeEdges,
               options);
  }
  for (const auto& [q_heads, kv_heads] : std::vector<std::pair<int, int>>{
           {4, 4}, {3, 1}, {7, 1}, {8, 1}, {9, 1}, {16, 1}, {48, 2}, {71, 1}}) {
    for (const int32_t dim : {64, 128, 256}) {
      list.Paged("groups",
                 {.head_dim = dim, .num_q_heads = q_heads, .num_kv_heads = kv_heads},
                 {{1, 1}, {1, 130}, {1, 700}},
                 options);
    }
  }
  const PagedShape small = {.num_q_heads = 8, .num_kv_heads = 2, .block_size = 32};
  const auto with = [&](auto change) {
    PagedShape shape = small;
    change(shape);
    return shape;
  };
  for (const int32_t window : {1, 16, 17, 100, 64, 5000}) {
    list.Paged(absl::StrCat("window", window),
               with([&](PagedShape& s) { s.window = window; }),
               kDecodeEdges,
               options);
  }
  list.Paged("softcap", with([](PagedShape& s) { s.soft_cap = 5; }), kDecodeEdges, options);
  list.Paged("alibi", with([](PagedShape& s) { s.alibi = true; }), kDecodeEdges, options);
  list.Paged("scales",
             with([](PagedShape& s) { s.k_scale = 0.4f, s.v_scale = 3; }),
             kDecodeEdges,
             options);
  list.Paged("all",
             with([](PagedShape& s) {
               s.k_scale = 0.4f, s.v_scale = 3, s.alibi = true, s.soft_cap = 20, s.window = 77;
             }),
             kDecodeEdges,
             options);
  const Sequences several_rows = {
      {2, 2}, {3, 64}, {4, 67}, {5, 500}, {17, 400}, {1, 300}, {0, 50}, {9, 9}};
  list.Paged("rows", small, several_rows, options);
  list.Paged("rows_window", with([](PagedShape& s) { s.window = 40; }), several_rows, options);
  list.Paged("rows_group16",
             {.head_dim = 64, .num_q_heads = 16, .num_kv_heads = 1, .block_size = 16},
             several_rows,
             options);
  list.Paged("whole_items", small, kDecodeEdges, {.path = Path::kDecode, .whole_items = true});
  list.Paged("programmatic", small, kDecodeEdges, {.path = Path::kDecode, .programmatic = true});
  // Long and wide.
  const Options large = {.path = Path::kDecode, .min_tiles_per_split = 2, .host_reference = false};
  list.Paged("long", {}, {{1, 8192}}, large);
  list.Paged("skewed",
             {.num_q_heads = 8, .num_kv_heads = 2},
             {{1, 131072}, {1, 4096}, {1, 4095}, {1, 1}},
             large);
  list.Paged(
      "million", {.head_dim = 64, .num_q_heads = 2, .num_kv_heads = 1}, {{1, 1000001}}, large);
  Sequences many;
  for (int i = 0; i < 1024; ++i) many.push_back({1, 1 + (i * 37) % 301});
  list.Paged("batch1024",
             {.head_dim = 64, .num_q_heads = 8, .num_kv_heads = 4, .block_size = 16},
             many,
             large);
  list.Paged("batch1024_mha", {.head_dim = 128, .num_q_heads = 8, .num_kv_heads = 8}, many, large);
  list.cases.push_back({"decode/graph", RunGraph});
}

void AddPrefill(CaseList& list, Path path) {
  const bool wgmma = path == Path::kPrefillWgmma;
  const Options options = {.path = path};
  list.Paged("one", {.num_q_heads = 1, .num_kv_heads = 1}, {{128, 128}}, options);
  list.Paged("plain", {.num_q_heads = 4, .num_kv_heads = 1}, {{64, 64}}, options);
  list.Paged("plain", {.num_q_heads = 4, .num_kv_heads = 1}, {{256, 256}}, options);
  list.Paged("cached", {.num_q_heads = 4, .num_kv_heads = 1}, {{100, 611}}, options);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t dim :
         wgmma ? std::vector<int32_t>{64, 128, 256} : std::vector<int32_t>{64, 80, 96, 128, 256}) {
      list.Paged("edges",
                 {.dtype = dtype, .head_dim = dim, .num_q_heads = 4, .num_kv_heads = 1},
                 kPrefillEdges,
                 options);
    }
  }
  for (const int32_t block_size : {16, 32, 64, 128}) {
    list.Paged("blocks",
               {.num_q_heads = 8,
                .num_kv_heads = 2,
                .block_size = block_size,
                .head_padding = 128,
                .query_padding = 40},
               kPrefillEdges,
               options);
  }
  for (const auto& [q_heads, kv_heads] :
       std::vector<std::pair<int, int>>{{4, 4}, {3, 1}, {7, 1}, {16, 1}, {71, 1}}) {
    list.Paged("groups",
               {.head_dim = 64, .num_q_heads = q_heads, .num_kv_heads = kv_heads},
               {{1, 1}, {40, 130}, {130, 130}},
               options);
  }
  const PagedShape small = {.num_q_heads = 4, .num_kv_heads = 2, .block_size = 32};
  const auto with = [&](auto change) {
    PagedShape shape = small;
    change(shape);
    return shape;
  };
  for (const int32_t window : {1, 16, 100, 128, 5000}) {
    list.Paged(absl::StrCat("window", window),
               with([&](PagedShape& s) { s.window = window; }),
               kPrefillEdges,
               options);
  }
  list.Paged("softcap", with([](PagedShape& s) { s.soft_cap = 5; }), kPrefillEdges, options);
  list.Paged("alibi", with([](PagedShape& s) { s.alibi = true; }), kPrefillEdges, options);
  list.Paged("scales",
             with([](PagedShape& s) { s.k_scale = 0.4f, s.v_scale = 3; }),
             kPrefillEdges,
             options);
  list.Paged("all",
             with([](PagedShape& s) {
               s.k_scale = 0.4f, s.v_scale = 3, s.alibi = true, s.soft_cap = 20, s.window = 77;
             }),
             kPrefillEdges,
             options);
  list.Paged("programmatic", small, kPrefillEdges, {.path = path, .programmatic = true});
  // Long enough that every block takes several tiles.
  const Options large = {.path = path, .host_reference = false};
  list.Paged("long", {}, {{2048, 2048}}, large);
  list.Paged("long",
             {.head_dim = 64, .num_q_heads = 8, .num_kv_heads = 8},
             {{1500, 3333}, {777, 777}, {1, 4000}},
             large);
  list.Paged("long",
             {.head_dim = 256, .num_q_heads = 8, .num_kv_heads = 2},
             {{1000, 1500}, {777, 777}},
             large);
  list.Paged("long_window",
             {.num_q_heads = 8, .num_kv_heads = 2, .window = 1000},
             {{1500, 4000}, {2000, 2000}},
             large);
}

std::vector<Case> AllCases() {
  CaseList list;
  list.cases.push_back({"reference", RunReference});
  list.cases.push_back({"refusals", RunRefusals});
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const std::string type = dtype == DType::kBFloat16 ? "bf16" : "fp16";
    list.Rope(absl::StrCat("plain_", type), {.dtype = dtype});
    list.Rope(absl::StrCat("partial_", type),
              {.dtype = dtype, .head_dim = 80, .rotary_dim = 32, .block_size = 16});
    list.Rope(absl::StrCat("odd_", type),
              {.dtype = dtype,
               .head_dim = 64,
               .rotary_dim = 20,
               .num_q_heads = 3,
               .num_kv_heads = 1,
               .padding = 3});
    list.Rope(absl::StrCat("none_", type),
              {.dtype = dtype, .head_dim = 256, .rotary_dim = 0, .padding = 8});
  }
  list.Rope("scales", {.head_dim = 96, .rotary_dim = 96, .k_scale = 0.5f, .v_scale = 4});
  AddDecode(list);
  AddPrefill(list, Path::kPrefillMma);
  AddPrefill(list, Path::kPrefillWgmma);
  list.Paged("chunks_and_rows",
             {.num_q_heads = 8, .num_kv_heads = 2},
             {{1, 1}, {300, 300}, {1, 999}, {2, 64}, {64, 640}, {1, 64}, {0, 9}, {3, 3}},
             {.path = Path::kMixed});
  list.Paged("chunks_and_rows",
             {.head_dim = 80, .num_q_heads = 4, .num_kv_heads = 4, .block_size = 16},
             {{1, 1}, {300, 300}, {1, 999}, {2, 64}, {64, 640}},
             {.path = Path::kMixed});
  for (const int version : {1, 2}) {
    for (const int32_t dim : {64, 80, 96, 128, 256}) {
      list.Classic(
          "edges",
          {.head_dim = dim, .num_q_heads = 4, .num_kv_heads = 2, .block_size = dim == 96 ? 32 : 16},
          {{1, 1}, {1, 16}, {1, 17}, {1, 511}, {1, 512}, {1, 513}, {1, 1300}},
          version);
    }
    list.Classic("fp16",
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
  return list.cases;
}

}  // namespace
}  // namespace pagoda::kernels::cuda::test

int main(int argc, char** argv) {
  return pagoda::kernels::cuda::test::RunCases(pagoda::kernels::cuda::test::AllCases(), argc, argv);
}
