// The ops of groups of devices against a reference in double precision.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status_macros.h"
#include "tests/kernels/cuda/group_cases.h"

namespace pagoda::kernels::cuda::test {
namespace {

// More than a launch reduces, and not aligned to anything.
constexpr int64_t kMaxCount = kMaxReduceBytes / 4 + 301;
constexpr size_t kArrayBytes = (kMaxCount + 16) * 4;

// A value in [-2, 2] that depends on everything, the same on every rank.
float ValueOf(uint32_t seed, int64_t i) {
  uint64_t h = (uint64_t{seed} << 32 | static_cast<uint32_t>(i)) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
  h ^= h >> 32;
  return static_cast<float>(static_cast<int64_t>(h & 0xfffff) - 0x80000) / 262144.0f;
}

void Encode(DType dtype, float value, char* to) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to, &value, 4);
  } else if (dtype == DType::kBFloat16) {
    const BFloat16 v = BFloat16::FromFloat(value);
    std::memcpy(to, &v, 2);
  } else {
    const Float16 v = Float16::FromFloat(value);
    std::memcpy(to, &v, 2);
  }
}

float Decode(DType dtype, const char* from) {
  if (dtype == DType::kFloat32) {
    float v;
    std::memcpy(&v, from, 4);
    return v;
  }
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return dtype == DType::kBFloat16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat();
}

// As it is after a trip through dtype.
float Rounded(DType dtype, float value) {
  char bits[4];
  Encode(dtype, value, bits);
  return Decode(dtype, bits);
}

// What rounding to nearest changes at most, relative to the value.
double Epsilon(DType dtype) {
  if (dtype == DType::kFloat32) return 6e-8;
  return dtype == DType::kBFloat16 ? 1.0 / 256 : 1.0 / 2048;
}

uint64_t HashOf(const std::vector<char>& bytes) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

class OpCases {
 public:
  OpCases(Rank& rank, Transport transport, bool quick)
      : rank_(rank),
        transport_(transport),
        quick_(quick),
        // NCCL rounds each addition.
        slack_(transport == Transport::kNccl ? rank.num_ranks : 1.01) {}

  absl::Status Run();

 private:
  struct Shape {
    DType dtype;
    int64_t rows;
    int64_t width;
    bool has_residual;
  };

  absl::Status Open();
  void Case(const std::string& name, const std::function<absl::Status()>& run);
  void ReduceCases(const char* kind, DeviceGroup& group);
  void NormCases(const char* kind, DeviceGroup& group);
  void MoveCases(DeviceGroup& group);

  absl::Status Reduce(DeviceGroup& group, DType dtype, int64_t count, int64_t shift, bool in_place);
  absl::Status SpecialValues(DeviceGroup& group, DType dtype);
  absl::Status Norm(DeviceGroup& group, const Shape& shape);
  absl::Status Gather(DeviceGroup& group, int64_t rows, int64_t row_bytes, int64_t left_out);
  absl::Status Broadcast(DeviceGroup& group, int64_t num_bytes, int root);
  absl::Status Mixed(DeviceGroup& group);
  absl::Status Graph(DeviceGroup& group);

  // Values of `rank`'s x.
  absl::Status Fill(char* device, DType dtype, int64_t count, uint32_t seed);
  absl::Status Poison(char* device, size_t num_bytes) {
    return Cuda(cudaMemsetAsync(device, 0xff, num_bytes, rank_.context.stream), "cudaMemsetAsync");
  }
  absl::StatusOr<std::vector<char>> Read(DeviceGroup& group, const char* device, size_t num_bytes);
  absl::Status SameOnAllRanks(const std::vector<char>& bytes);
  uint32_t SeedOf(int rank) const { return seed_ * 16 + static_cast<uint32_t>(rank); }

  Rank& rank_;
  const Transport transport_;
  const bool quick_;
  const double slack_;  // rounding of a sum, in units of the type's epsilon
  uint32_t seed_ = 0;
  int num_passed_ = 0, num_failed_ = 0;
  bool is_lost_ = false;
  char *x_ = nullptr, *y_ = nullptr, *sum_ = nullptr, *residual_ = nullptr;
  float* weight_ = nullptr;
  std::vector<float> weights_;
};

absl::Status OpCases::Open() {
  for (char** array : {&x_, &y_, &sum_, &residual_}) {
    PAGODA_RETURN_IF_ERROR(
        Cuda(cudaMalloc(reinterpret_cast<void**>(array), kArrayBytes), "cudaMalloc"));
  }
  constexpr int64_t kWeights = 32768;
  PAGODA_RETURN_IF_ERROR(
      Cuda(cudaMalloc(reinterpret_cast<void**>(&weight_), kWeights * 4), "cudaMalloc"));
  for (int64_t i = 0; i < kWeights; ++i) weights_.push_back(ValueOf(77, i));
  return Cuda(cudaMemcpy(weight_, weights_.data(), kWeights * 4, cudaMemcpyHostToDevice),
              "cudaMemcpy");
}

void OpCases::Case(const std::string& name, const std::function<absl::Status()>& run) {
  if (is_lost_) return;
  ++seed_;
  const absl::Status status = run();
  const bool all_ok = rank_.All(status.ok());
  if (!status.ok()) {
    std::printf(
        "FAIL %s: rank %d: %s\n", name.c_str(), rank_.rank, std::string(status.message()).c_str());
  }
  if (all_ok) {
    ++num_passed_;
    if (rank_.rank == 0) std::printf("ok   %s\n", name.c_str());
  } else {
    ++num_failed_;
    // Ranks may be at different calls.
    is_lost_ = true;
  }
  std::fflush(stdout);
}

absl::Status OpCases::Fill(char* device, DType dtype, int64_t count, uint32_t seed) {
  const size_t element = DTypeBytes(dtype);
  std::vector<char> host(count * element);
  for (int64_t i = 0; i < count; ++i) Encode(dtype, ValueOf(seed, i), &host[i * element]);
  PAGODA_RETURN_IF_ERROR(
      Cuda(cudaMemcpyAsync(
               device, host.data(), host.size(), cudaMemcpyHostToDevice, rank_.context.stream),
           "cudaMemcpyAsync"));
  // Pageable memory is staged before the call returns.
  return absl::OkStatus();
}

absl::StatusOr<std::vector<char>> OpCases::Read(DeviceGroup& group,
                                                const char* device,
                                                size_t num_bytes) {
  PAGODA_RETURN_IF_ERROR(AwaitGroup(rank_, group));
  std::vector<char> host(num_bytes);
  PAGODA_RETURN_IF_ERROR(Cuda(
      cudaMemcpyAsync(host.data(), device, num_bytes, cudaMemcpyDeviceToHost, rank_.context.stream),
      "cudaMemcpyAsync"));
  PAGODA_RETURN_IF_ERROR(
      Cuda(cudaStreamSynchronize(rank_.context.stream), "cudaStreamSynchronize"));
  return host;
}

absl::Status OpCases::SameOnAllRanks(const std::vector<char>& bytes) {
  const uint64_t own = HashOf(bytes);
  std::vector<uint64_t> all(rank_.num_ranks);
  PAGODA_RETURN_IF_ERROR(rank_.host->AllGather(&own, all.data(), sizeof(own)));
  for (const uint64_t hash : all) {
    if (hash != own) return absl::InternalError("bits differ between ranks");
  }
  return absl::OkStatus();
}

absl::Status OpCases::Reduce(
    DeviceGroup& group, DType dtype, int64_t count, int64_t shift, bool in_place) {
  const size_t element = DTypeBytes(dtype);
  char* const x = x_ + shift * static_cast<int64_t>(element);
  char* const y = in_place ? x : y_ + shift * static_cast<int64_t>(element);
  PAGODA_RETURN_IF_ERROR(Poison(y_, (count + 16) * element));
  PAGODA_RETURN_IF_ERROR(Poison(x_, (count + 16) * element));
  PAGODA_RETURN_IF_ERROR(Fill(x, dtype, count, SeedOf(rank_.rank)));
  PAGODA_RETURN_IF_ERROR(group.AllReduceSum({.x = x, .y = y, .count = count, .dtype = dtype}));
  PAGODA_ASSIGN_OR_RETURN(std::vector<char> out, Read(group, y, (count + 8) * element));
  for (int64_t i = 0; i < count; ++i) {
    double expected = 0.0, size = 0.0;
    for (int r = 0; r < rank_.num_ranks; ++r) {
      const double v = Rounded(dtype, ValueOf(SeedOf(r), i));
      expected += v;
      size += std::abs(v);
    }
    const double got = Decode(dtype, &out[i * element]);
    const double limit =
        slack_ * Epsilon(dtype) *
            std::max(std::abs(expected), transport_ == Transport::kNccl ? size : 0) +
        4e-7 * size + 1e-7;
    if (!(std::abs(got - expected) <= limit)) {
      return absl::InternalError(
          absl::StrCat("element ", i, " is ", got, ", expected ", expected, " +- ", limit));
    }
  }
  for (size_t i = count * element; i < out.size(); ++i) {
    if (static_cast<unsigned char>(out[i]) != 0xff) {
      return absl::InternalError("what follows the array was written");
    }
  }
  out.resize(count * element);
  return SameOnAllRanks(out);
}

// Zeros of both signs, infinities and NaNs, the one that marks empty slots among them.
absl::Status OpCases::SpecialValues(DeviceGroup& group, DType dtype) {
  constexpr int64_t kCount = 64;
  const size_t element = DTypeBytes(dtype);
  std::vector<char> host(kCount * element, 0);
  const float inf = std::numeric_limits<float>::infinity();
  const float values[] = {0.0f, -0.0f, inf, rank_.rank == 0 ? inf : -inf, 1.0f};
  for (int64_t i = 0; i < kCount; ++i) {
    if (i % 8 < 5) {
      Encode(dtype, values[i % 8], &host[i * element]);
    } else if (i % 8 > 5 || rank_.rank == 0) {
      std::memset(&host[i * element], 0xff, element);
    }
  }
  PAGODA_RETURN_IF_ERROR(Cuda(
      cudaMemcpyAsync(x_, host.data(), host.size(), cudaMemcpyHostToDevice, rank_.context.stream),
      "cudaMemcpyAsync"));
  PAGODA_RETURN_IF_ERROR(group.AllReduceSum({.x = x_, .y = y_, .count = kCount, .dtype = dtype}));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<char> out, Read(group, y_, host.size()));
  for (int64_t i = 0; i < kCount; ++i) {
    const float got = Decode(dtype, &out[i * element]);
    const int at = static_cast<int>(i % 8);
    const bool cancels = at == 3 && rank_.num_ranks > 1;
    const bool ok = at < 2              ? got == 0.0f
                    : at == 2           ? got == inf
                    : at > 4 || cancels ? std::isnan(got)
                    : at == 3           ? got == inf
                                        : got == static_cast<float>(rank_.num_ranks);
    if (!ok) return absl::InternalError(absl::StrCat("element ", i, " is ", got));
  }
  return transport_ == Transport::kIpc ? SameOnAllRanks(out) : absl::OkStatus();
}

absl::Status OpCases::Norm(DeviceGroup& group, const Shape& shape) {
  constexpr float kEpsilon = 1e-5f, kOffset = 1.0f;
  const size_t element = DTypeBytes(shape.dtype);
  const int64_t count = shape.rows * shape.width;
  PAGODA_RETURN_IF_ERROR(Poison(y_, count * element));
  PAGODA_RETURN_IF_ERROR(Poison(sum_, count * element));
  PAGODA_RETURN_IF_ERROR(Fill(x_, shape.dtype, count, SeedOf(rank_.rank)));
  PAGODA_RETURN_IF_ERROR(Fill(residual_, shape.dtype, count, SeedOf(15)));
  PAGODA_RETURN_IF_ERROR(group.AllReduceNorm({.x = x_,
                                              .residual = shape.has_residual ? residual_ : nullptr,
                                              .sum = shape.has_residual ? residual_ : sum_,
                                              .weight = weight_,
                                              .y = y_,
                                              .rows = shape.rows,
                                              .width = shape.width,
                                              .epsilon = kEpsilon,
                                              .weight_offset = kOffset,
                                              .dtype = shape.dtype}));
  const char* const sum_at = shape.has_residual ? residual_ : sum_;
  PAGODA_ASSIGN_OR_RETURN(const std::vector<char> sum, Read(group, sum_at, count * element));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<char> out, Read(group, y_, count * element));
  const double epsilon = Epsilon(shape.dtype);
  for (int64_t row = 0; row < shape.rows; ++row) {
    double squares = 0.0;
    for (int64_t j = 0; j < shape.width; ++j) {
      const int64_t i = row * shape.width + j;
      double expected = shape.has_residual ? Rounded(shape.dtype, ValueOf(SeedOf(15), i)) : 0.0;
      double size = std::abs(expected);
      for (int r = 0; r < rank_.num_ranks; ++r) {
        const double v = Rounded(shape.dtype, ValueOf(SeedOf(r), i));
        expected += v;
        size += std::abs(v);
      }
      const double got = Decode(shape.dtype, &sum[i * element]);
      if (!(std::abs(got - expected) <= 1.01 * epsilon * std::abs(expected) + 4e-7 * size + 1e-7)) {
        return absl::InternalError(
            absl::StrCat("sum ", row, ",", j, " is ", got, ", expected ", expected));
      }
      squares += got * got;
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(shape.width) + kEpsilon);
    for (int64_t j = 0; j < shape.width; ++j) {
      const int64_t i = row * shape.width + j;
      const double expected =
          Decode(shape.dtype, &sum[i * element]) * scale * (weights_[j] + kOffset);
      const double got = Decode(shape.dtype, &out[i * element]);
      if (!(std::abs(got - expected) <= (1.01 * epsilon + 2e-6) * std::abs(expected) + 1e-6)) {
        return absl::InternalError(
            absl::StrCat("y ", row, ",", j, " is ", got, ", expected ", expected));
      }
    }
  }
  PAGODA_RETURN_IF_ERROR(SameOnAllRanks(sum));
  return SameOnAllRanks(out);
}

char ByteOf(uint32_t seed, int64_t i) {
  return static_cast<char>(static_cast<int>(ValueOf(seed, i) * 4096.0f) >> 3);
}

absl::Status OpCases::Gather(DeviceGroup& group,
                             int64_t rows,
                             int64_t row_bytes,
                             int64_t left_out) {
  const int64_t y_row = row_bytes * rank_.num_ranks - left_out;
  const int64_t y_stride = y_row + (row_bytes % 16 == 0 && left_out == 0 ? 32 : 3);
  std::vector<char> host(rows * row_bytes);
  for (int64_t i = 0; i < rows * row_bytes; ++i) host[i] = ByteOf(SeedOf(rank_.rank), i);
  PAGODA_RETURN_IF_ERROR(Cuda(
      cudaMemcpyAsync(x_, host.data(), host.size(), cudaMemcpyHostToDevice, rank_.context.stream),
      "cudaMemcpyAsync"));
  PAGODA_RETURN_IF_ERROR(Poison(y_, rows * y_stride));
  PAGODA_RETURN_IF_ERROR(group.AllGather({.x = x_,
                                          .y = y_,
                                          .rows = rows,
                                          .row_bytes = row_bytes,
                                          .y_row_bytes = y_row,
                                          .y_stride_bytes = y_stride}));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<char> out, Read(group, y_, rows * y_stride));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = 0; j < y_stride; ++j) {
      const char expected = j < y_row ? ByteOf(SeedOf(static_cast<int>(j / row_bytes)),
                                               row * row_bytes + j % row_bytes)
                                      : static_cast<char>(0xff);
      if (out[row * y_stride + j] != expected) {
        return absl::InternalError(absl::StrCat("row ", row, " byte ", j, " is wrong"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status OpCases::Broadcast(DeviceGroup& group, int64_t num_bytes, int root) {
  std::vector<char> host(num_bytes);
  for (int64_t i = 0; i < num_bytes; ++i) host[i] = ByteOf(SeedOf(rank_.rank), i);
  PAGODA_RETURN_IF_ERROR(Cuda(
      cudaMemcpyAsync(x_, host.data(), host.size(), cudaMemcpyHostToDevice, rank_.context.stream),
      "cudaMemcpyAsync"));
  PAGODA_RETURN_IF_ERROR(group.Broadcast({.data = x_, .size_bytes = num_bytes, .root = root}));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<char> out, Read(group, x_, num_bytes));
  for (int64_t i = 0; i < num_bytes; ++i) {
    if (out[i] != ByteOf(SeedOf(root), i)) {
      return absl::InternalError(absl::StrCat("byte ", i, " is wrong"));
    }
  }
  return absl::OkStatus();
}

// Ops of many sizes back to back, each on what the one before made: slots that are not empty when
// they are used again would show.
absl::Status OpCases::Mixed(DeviceGroup& group) {
  // By turns far more and far fewer blocks; a sum over ranks that have the same is a product.
  const int64_t counts[] = {4096, 8, 300'000, 77, 65'536, 1, 20'000, 2048};
  constexpr int64_t kCount = 300'000;
  const int rounds = quick_ ? 4 : 25;
  PAGODA_RETURN_IF_ERROR(Fill(x_, DType::kFloat32, kCount, SeedOf(rank_.rank)));
  std::vector<double> first(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    for (int r = 0; r < rank_.num_ranks; ++r) first[i] += ValueOf(SeedOf(r), i);
  }
  std::vector<double> expected = first;
  PAGODA_RETURN_IF_ERROR(
      group.AllReduceSum({.x = x_, .y = y_, .count = kCount, .dtype = DType::kFloat32}));
  for (int round = 0; round < rounds; ++round) {
    for (const int64_t count : counts) {
      PAGODA_RETURN_IF_ERROR(
          group.AllReduceSum({.x = y_, .y = y_, .count = count, .dtype = DType::kFloat32}));
      for (int64_t i = 0; i < count; ++i) expected[i] *= rank_.num_ranks;
      if (count == 77) {
        PAGODA_RETURN_IF_ERROR(group.Broadcast({.data = y_, .size_bytes = 5000, .root = 0}));
      }
    }
    // Back to where it was: powers would not fit.
    PAGODA_RETURN_IF_ERROR(
        group.AllReduceSum({.x = x_, .y = y_, .count = kCount, .dtype = DType::kFloat32}));
    expected = first;
  }
  for (const int64_t count : counts) {
    PAGODA_RETURN_IF_ERROR(
        group.AllReduceSum({.x = y_, .y = y_, .count = count, .dtype = DType::kFloat32}));
    for (int64_t i = 0; i < count; ++i) expected[i] *= rank_.num_ranks;
  }
  PAGODA_ASSIGN_OR_RETURN(const std::vector<char> out, Read(group, y_, kCount * 4));
  for (int64_t i = 0; i < kCount; ++i) {
    const double got = Decode(DType::kFloat32, &out[i * 4]);
    if (!(std::abs(got - expected[i]) <= 1e-4 * std::abs(expected[i]) + 1e-4)) {
      return absl::InternalError(
          absl::StrCat("element ", i, " is ", got, ", expected ", expected[i]));
    }
  }
  return SameOnAllRanks(out);
}

// A recorded sequence gives what the same calls gave, at every replay, whatever runs between.
absl::Status OpCases::Graph(DeviceGroup& group) {
  constexpr int64_t kRows = 5, kWidth = 2048;
  constexpr int64_t kCount = kRows * kWidth;
  cudaStream_t const stream = rank_.context.stream;
  const bool has_norm = transport_ == Transport::kIpc;
  const auto sequence = [&]() -> absl::Status {
    PAGODA_RETURN_IF_ERROR(
        group.AllReduceSum({.x = x_, .y = y_, .count = kCount, .dtype = DType::kBFloat16}));
    for (int i = 0; i < 3; ++i) {
      PAGODA_RETURN_IF_ERROR(group.AllReduceSum(
          {.x = y_, .y = y_, .count = kCount - 100 * i, .dtype = DType::kBFloat16}));
      if (!has_norm) continue;
      PAGODA_RETURN_IF_ERROR(group.AllReduceNorm({.x = y_,
                                                  .sum = sum_,
                                                  .weight = weight_,
                                                  .y = y_,
                                                  .rows = kRows,
                                                  .width = kWidth,
                                                  .dtype = DType::kBFloat16}));
    }
    return group.AllGather({.x = y_,
                            .y = residual_,
                            .rows = 1,
                            .row_bytes = kCount * 2,
                            .y_row_bytes = kCount * 2 * rank_.num_ranks,
                            .y_stride_bytes = kCount * 2 * rank_.num_ranks});
  };
  const size_t num_bytes = kCount * 2 * static_cast<size_t>(rank_.num_ranks);
  PAGODA_RETURN_IF_ERROR(Fill(x_, DType::kBFloat16, kCount, SeedOf(rank_.rank)));
  PAGODA_RETURN_IF_ERROR(sequence());
  PAGODA_ASSIGN_OR_RETURN(const std::vector<char> expected, Read(group, residual_, num_bytes));
  PAGODA_RETURN_IF_ERROR(SameOnAllRanks(expected));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  PAGODA_RETURN_IF_ERROR(
      Cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture"));
  const absl::Status recorded = sequence();
  PAGODA_RETURN_IF_ERROR(Cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  PAGODA_RETURN_IF_ERROR(recorded);
  PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate"));
  // Loading may wait for kernels, which must not wait for a rank that has yet to load.
  PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphUpload(exec, stream), "cudaGraphUpload"));
  PAGODA_RETURN_IF_ERROR(Cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  rank_.All(true);
  const int replays = quick_ ? 5 : 40;
  for (int i = 0; i < replays; ++i) {
    PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch"));
    // An odd number of launches between, at times.
    if (i % 3 == 0) {
      PAGODA_RETURN_IF_ERROR(
          group.AllReduceSum({.x = x_, .y = sum_, .count = 9, .dtype = DType::kBFloat16}));
    }
    if (i % 10 != 0 && i != replays - 1) continue;
    PAGODA_ASSIGN_OR_RETURN(const std::vector<char> out, Read(group, residual_, num_bytes));
    if (out != expected) return absl::InternalError(absl::StrCat("replay ", i, " differs"));
    PAGODA_RETURN_IF_ERROR(Poison(residual_, num_bytes));
  }
  PAGODA_RETURN_IF_ERROR(Cuda(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy"));
  return Cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

void OpCases::ReduceCases(const char* kind, DeviceGroup& group) {
  std::vector<int64_t> counts = {1, 7, 8, 9, 257, 4096, 4097, 65'536 + 3};
  if (!quick_) counts.insert(counts.end(), {131'072, 500'003, kMaxCount});
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const int64_t count : counts) {
      Case(absl::StrCat("all_reduce/", kind, "/", std::string(DTypeName(dtype)), "/", count),
           [&] { return Reduce(group, dtype, count, 0, count % 2 == 0); });
    }
    for (const int64_t count : {3, 5000}) {
      Case(absl::StrCat(
               "all_reduce/", kind, "/", std::string(DTypeName(dtype)), "/unaligned/", count),
           [&] { return Reduce(group, dtype, count, 1, false); });
    }
    Case(absl::StrCat("all_reduce/", kind, "/", std::string(DTypeName(dtype)), "/special_values"),
         [&] { return SpecialValues(group, dtype); });
  }
  Case(absl::StrCat("all_reduce/", kind, "/mixed"), [&] { return Mixed(group); });
  Case(absl::StrCat("graph/", kind), [&] { return Graph(group); });
}

void OpCases::NormCases(const char* kind, DeviceGroup& group) {
  std::vector<Shape> shapes = {{DType::kBFloat16, 1, 4096, true},
                               {DType::kBFloat16, 3, 576, false},
                               {DType::kFloat16, 2, 8192, true},
                               {DType::kBFloat16, 2, 16384, true},
                               {DType::kFloat16, 5, 100, true},
                               {DType::kFloat32, 3, 1000, false},
                               {DType::kBFloat16, 4, 2047, true},
                               {DType::kFloat32, 1, 8192, true}};
  if (!quick_) {
    shapes.push_back({DType::kBFloat16, 300, 4096, true});
    shapes.push_back({DType::kBFloat16, 700, 64, false});
    shapes.push_back({DType::kFloat16, 1100, 1024, true});
  }
  for (const Shape& shape : shapes) {
    Case(absl::StrCat("all_reduce_norm/",
                      kind,
                      "/",
                      std::string(DTypeName(shape.dtype)),
                      "/",
                      shape.rows,
                      "x",
                      shape.width,
                      shape.has_residual ? "" : "/no_residual"),
         [&] { return Norm(group, shape); });
  }
}

void OpCases::MoveCases(DeviceGroup& group) {
  struct GatherCase {
    int64_t rows, row_bytes, left_out;
  };
  std::vector<GatherCase> gathers = {
      {1, 1, 0}, {3, 7, 2}, {1, 4096, 0}, {5, 1232, 12}, {2, 70'000, 0}};
  if (!quick_) gathers.insert(gathers.end(), {{4, 256'512, 512}, {1, 1'000'003, 0}});
  for (const GatherCase& c : gathers) {
    Case(absl::StrCat("all_gather/", c.rows, "x", c.row_bytes, "/left_out_", c.left_out),
         [&] { return Gather(group, c.rows, c.row_bytes, c.left_out); });
  }
  for (const int64_t num_bytes : {1, 1000, quick_ ? 70'000 : 2'000'001}) {
    for (int root = 0; root < rank_.num_ranks; root += std::max(1, rank_.num_ranks - 1)) {
      Case(absl::StrCat("broadcast/", num_bytes, "/from_", root),
           [&] { return Broadcast(group, num_bytes, root); });
    }
  }
}

absl::Status OpCases::Run() {
  PAGODA_RETURN_IF_ERROR(Open());
  if (transport_ == Transport::kNccl) {
    PAGODA_ASSIGN_OR_RETURN(const auto group, MakeGroup(transport_, rank_));
    ReduceCases("nccl", *group);
    MoveCases(*group);
    rank_.All(true);
  } else {
    struct Kind {
      const char* name;
      Shots shots;
    };
    for (const Kind& kind : {Kind{"one_shot", Shots::kOne},
                             Kind{"two_shot", Shots::kTwo},
                             Kind{"auto", Shots::kAuto}}) {
      if (is_lost_ || (quick_ && kind.shots == Shots::kAuto)) continue;
      PAGODA_ASSIGN_OR_RETURN(const auto group, MakeGroup(transport_, rank_, kind.shots));
      ReduceCases(kind.name, *group);
      NormCases(kind.name, *group);
      MoveCases(*group);
      // No rank lets go while another writes.
      rank_.All(true);
    }
  }
  if (rank_.rank == 0) std::printf("     %d passed, %d failed\n", num_passed_, num_failed_);
  return num_failed_ == 0 ? absl::OkStatus()
                          : absl::InternalError(absl::StrCat(num_failed_, " cases failed"));
}

}  // namespace

absl::Status RunOpCases(Rank& rank, Transport transport, bool quick) {
  OpCases cases(rank, transport, quick);
  return cases.Run();
}

}  // namespace pagoda::kernels::cuda::test
