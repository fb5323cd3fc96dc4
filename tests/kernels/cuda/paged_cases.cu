#include <functional>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/paged_attention_classic.h"
#include "tests/kernels/cuda/attention_cases.h"

namespace pagoda::kernels::cuda::test {
namespace {

using Sequences = PagedData::Sequences;

constexpr uint16_t kUntouched = 0xfefe;  // a huge negative number in both types, not NaN

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
  explicit CaseList(std::vector<Case>* cases) : cases_(cases) {}

  void Add(const std::string& name, const std::function<std::string(std::string*)>& run) {
    cases_->push_back({name, run});
  }
  void Paged(absl::string_view what,
             const PagedShape& shape,
             const Sequences& sequences,
             const Options& options) {
    Add(absl::StrCat(PathName(options.path), "/", what, "/", ShapeName(shape)),
        [=](std::string* note) { return RunPaged(shape, sequences, options, note); });
  }

 private:
  std::vector<Case>* cases_;
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
  list.Add("decode/graph", RunGraph);
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

}  // namespace

void AddPagedCases(std::vector<Case>* cases) {
  CaseList list(cases);
  list.Add("reference", RunReference);
  list.Add("refusals", RunRefusals);
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
}

}  // namespace pagoda::kernels::cuda::test
