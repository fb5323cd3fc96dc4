#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/device.cuh"
#include "kernels/ops/attention.h"

// Paged batches on the device for the tests and benchmarks of the attention kernels: random keys,
// values and queries that are functions of (seed, sequence, token, head, element), permuted blocks,
// everything unused poisoned.

namespace pagoda::kernels::cuda::test {

// Ends the process: after a CUDA error nothing that follows means anything.
inline void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("CUDA ERROR %s: %s\n", what, cudaGetErrorString(error));
  std::fflush(stdout);
  std::_Exit(3);
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes = 0) : bytes_(bytes) {
    if (bytes > 0) CheckCuda(cudaMalloc(&data_, bytes), "cudaMalloc");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) cudaFree(data_);
  }

  template <typename T>
  static DeviceBuffer From(const std::vector<T>& host) {
    DeviceBuffer buffer(std::max<size_t>(16, host.size() * sizeof(T)));
    CheckCuda(
        cudaMemcpy(buffer.data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
        "copy to device");
    return buffer;
  }
  template <typename T>
  std::vector<T> To(size_t count) const {
    std::vector<T> host(count);
    CheckCuda(cudaMemcpy(host.data(), data_, count * sizeof(T), cudaMemcpyDeviceToHost),
              "copy to host");
    return host;
  }
  void Fill(int byte) { CheckCuda(cudaMemset(data_, byte, bytes_), "cudaMemset"); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

__host__ __device__ inline uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// About normal, of variance 1: the sum of four uniform numbers.
__host__ __device__ inline float RandomNormal(uint64_t index) {
  const uint64_t bits = Mix(index * 0x9e3779b97f4a7c15ull + 0x1234567ull);
  float sum = 0.0f;
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<float>((bits >> (16 * i)) & 0xffff) * (1.0f / 65536.0f) - 0.5f;
  }
  return sum * 1.7320508f;
}

enum class Stream : uint64_t { kQuery = 1, kKey = 2, kValue = 3 };

__host__ __device__ inline uint64_t ElementIndex(
    Stream stream, uint64_t seq, uint64_t token, uint64_t head, uint64_t i) {
  return (static_cast<uint64_t>(stream) << 60) ^ (seq << 44) ^ (token << 20) ^ (head << 10) ^ i;
}

struct PagedShape {
  DType dtype = DType::kBFloat16;
  int32_t head_dim = 128;
  int32_t num_q_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t block_size = 64;
  int32_t window = 0;
  float soft_cap = 0.0f;
  bool alibi = false;
  float k_scale = 1.0f;
  float v_scale = 1.0f;
  // Elements between the rows of a head's slots and the next head's, beyond what they need.
  int32_t head_padding = 0;
  int32_t query_padding = 0;
};

// What the filling and the reference kernels see.
struct PagedView {
  PagedShape shape;
  KvCacheView cache;
  const int32_t* tables;
  int64_t table_stride;
  const int32_t* row_offsets;
  const int32_t* context_lens;
  const float* slopes;
  int32_t num_seqs;
};

template <typename T>
__global__ void FillQueryKernel(T* q, int64_t stride, PagedView view, float factor) {
  const int seq = blockIdx.y;
  const int begin = view.row_offsets[seq], end = view.row_offsets[seq + 1];
  const int width = view.shape.num_q_heads * view.shape.head_dim;
  for (int row = begin + static_cast<int>(blockIdx.x); row < end; row += gridDim.x) {
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      const int head = i / view.shape.head_dim;
      q[row * stride + i] = Number<T>::FromFloat(
          factor * RandomNormal(ElementIndex(
                       Stream::kQuery, seq, row - begin, head, i % view.shape.head_dim)));
    }
  }
}

// Writes the tokens that some row sees.
template <typename T>
__global__ void FillCacheKernel(PagedView view, const int32_t* first_tokens) {
  const int seq = blockIdx.y;
  const KvCacheView& cache = view.cache;
  const int width = cache.num_kv_heads * cache.head_dim;
  for (int token = first_tokens[seq] + static_cast<int>(blockIdx.x); token < view.context_lens[seq];
       token += gridDim.x) {
    const int64_t block = view.tables[seq * view.table_stride + token / cache.block_size];
    T* base = static_cast<T*>(cache.data) + block * cache.block_stride +
              token % cache.block_size * int64_t{cache.head_dim};
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      const int head = i / cache.head_dim;
      const int d = i % cache.head_dim;
      T* k = base + head * cache.head_stride + d;
      *k = Number<T>::FromFloat(RandomNormal(ElementIndex(Stream::kKey, seq, token, head, d)));
      k[cache.v_offset] =
          Number<T>::FromFloat(RandomNormal(ElementIndex(Stream::kValue, seq, token, head, d)));
    }
  }
}

// One block a (row, query head), in double precision: slow, plain, and reading the cache as the
// op's contract says.
template <typename T>
__global__ void ReferenceKernel(const T* q,
                                int64_t q_stride,
                                PagedView view,
                                float scale,
                                double* scores,
                                int64_t score_stride,
                                float* out) {
  const PagedShape& shape = view.shape;
  const KvCacheView& cache = view.cache;
  const int row = blockIdx.x;
  const int head = blockIdx.y;
  int seq = 0;
  while (view.row_offsets[seq + 1] <= row) ++seq;
  const int context = view.context_lens[seq];
  const int position = context - (view.row_offsets[seq + 1] - row);
  const int begin = shape.window > 0 ? max(0, position - shape.window + 1) : 0;
  const int kv_head = head / (shape.num_q_heads / shape.num_kv_heads);
  const T* query = q + row * q_stride + head * shape.head_dim;
  double* s = scores + (int64_t{row} * shape.num_q_heads + head) * score_stride;
  const auto key_at = [&](int token) {
    const int64_t block = view.tables[seq * view.table_stride + token / cache.block_size];
    return static_cast<const T*>(cache.data) + block * cache.block_stride +
           kv_head * cache.head_stride + token % cache.block_size * int64_t{cache.head_dim};
  };
  __shared__ double shared[512];
  double high = -1e300;
  for (int token = begin + threadIdx.x; token <= position; token += blockDim.x) {
    const T* k = key_at(token);
    double dot = 0;
    for (int i = 0; i < shape.head_dim; ++i) {
      dot += double{Number<T>::ToFloat(query[i])} * double{Number<T>::ToFloat(k[i])};
    }
    double x = dot * scale * shape.k_scale;
    if (shape.soft_cap > 0) x = shape.soft_cap * tanh(x / shape.soft_cap);
    if (view.slopes != nullptr) x += double{view.slopes[head]} * (token - position);
    s[token - begin] = x;
    high = fmax(high, x);
  }
  shared[threadIdx.x] = high;
  __syncthreads();
  for (int half = blockDim.x / 2; half >= 1; half /= 2) {
    if (threadIdx.x < half)
      shared[threadIdx.x] = fmax(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  high = shared[0];
  __syncthreads();
  double sum = 0;
  for (int i = threadIdx.x; i <= position - begin; i += blockDim.x) {
    s[i] = exp(s[i] - high);
    sum += s[i];
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half >= 1; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  sum = shared[0];
  __syncthreads();
  // Threads (d, part of the keys).
  const int parts = blockDim.x / shape.head_dim;
  const int d = threadIdx.x % shape.head_dim;
  const int part = threadIdx.x / shape.head_dim;
  double value = 0;
  if (part < parts) {
    for (int token = begin + part; token <= position; token += parts) {
      value += s[token - begin] * double{Number<T>::ToFloat(key_at(token)[cache.v_offset + d])};
    }
  }
  shared[threadIdx.x] = value;
  __syncthreads();
  if (part == 0) {
    for (int i = 1; i < parts; ++i) value += shared[i * shape.head_dim + d];
    out[(int64_t{row} * shape.num_q_heads + head) * shape.head_dim + d] =
        static_cast<float>(value / sum * shape.v_scale);
  }
}

// One batch with everything a launch needs.
class PagedData {
 public:
  // (rows, context) of each sequence.
  using Sequences = std::vector<std::pair<int32_t, int32_t>>;

  PagedData(const PagedShape& shape,
            const Sequences& sequences,
            uint32_t seed,
            int32_t extra_blocks = 7)
      : shape_(shape), random_(seed) {
    row_offsets_ = {0};
    int32_t max_blocks = 1;
    int64_t blocks = 0;
    for (const auto& [rows, context] : sequences) {
      row_offsets_.push_back(row_offsets_.back() + rows);
      context_lens_.push_back(context);
      const int32_t needed = (context + shape.block_size - 1) / shape.block_size;
      max_blocks = std::max(max_blocks, needed);
      blocks += needed;
    }
    num_blocks_ = blocks + extra_blocks;
    table_stride_ = max_blocks + 3;
    MakeTables();
    MakeCache();
    MakeQuery();
    MakePlan();
  }

  const PagedShape& shape() const { return shape_; }
  const AttentionPlanShape& plan_shape() const { return plan_shape_; }
  int32_t num_rows() const { return row_offsets_.back(); }
  int32_t num_seqs() const { return static_cast<int32_t>(context_lens_.size()); }
  int64_t out_elements() const {
    return int64_t{num_rows()} * shape_.num_q_heads * shape_.head_dim;
  }
  const std::vector<int32_t>& row_offsets() const { return row_offsets_; }
  const std::vector<int32_t>& context_lens() const { return context_lens_; }
  const std::vector<int32_t>& tables() const { return tables_; }
  int64_t table_stride() const { return table_stride_; }
  DeviceBuffer& out() { return out_; }
  DeviceBuffer& pool() { return pool_; }
  DeviceBuffer& query() { return query_; }

  // Bytes of K and V that the batch reads.
  double KvBytes() const {
    double tokens = 0;
    for (int i = 0; i < num_seqs(); ++i) {
      const int32_t rows = row_offsets_[i + 1] - row_offsets_[i];
      const int32_t first =
          shape_.window > 0 ? std::max(0, context_lens_[i] - rows - shape_.window + 1) : 0;
      tokens += context_lens_[i] - first;
    }
    return tokens * shape_.num_kv_heads * shape_.head_dim * 2 * 2;
  }

  // Before Plan: another number of thread blocks.
  void SetDecodeGrid(int32_t grid) {
    plan_shape_.decode_grid = grid;
    plan_ = DeviceBuffer(plan_shape_.size_bytes());
    workspace_ = DeviceBuffer(AttentionWorkspaceBytes(plan_shape_, shape_.head_dim));
    workspace_.Fill(0);
  }

  absl::Status Plan(std::optional<int32_t> max_decode_rows,
                    int32_t min_tiles_per_split = 2,
                    bool whole_items = false) {
    std::vector<char> plan(plan_shape_.size_bytes(), char{0x7f});
    const absl::Status status = MakeAttentionPlan(plan_shape_,
                                                  {.row_offsets = row_offsets_,
                                                   .context_lens = context_lens_,
                                                   .window = shape_.window,
                                                   .max_decode_rows = max_decode_rows,
                                                   .min_tiles_per_split = min_tiles_per_split,
                                                   .whole_items = whole_items},
                                                  plan.data());
    CheckCuda(cudaMemcpy(plan_.data(), plan.data(), plan.size(), cudaMemcpyHostToDevice),
              "copy plan");
    return status;
  }

  // Valid as long as this object stays where it is.
  AttentionLaunch Launch() {
    batch_ = {.num_seqs = num_seqs(),
              .num_rows = num_rows(),
              .row_offsets = device_row_offsets_.as<int32_t>(),
              .context_lens = device_context_lens_.as<int32_t>(),
              .block_tables = device_tables_.as<int32_t>(),
              .block_table_stride = table_stride_};
    params_ = {.q = query_.data(),
               .q_stride = query_stride_,
               .out = out_.data(),
               .num_q_heads = shape_.num_q_heads,
               .batch = &batch_,
               .cache = cache_,
               .scale = scale(),
               .window = shape_.window,
               .soft_cap = shape_.soft_cap,
               .alibi_slopes = shape_.alibi ? slopes_.as<float>() : nullptr,
               .dtype = shape_.dtype};
    return {.params = &params_,
            .shape = plan_shape_,
            .plan = plan_.data(),
            .workspace = workspace_.data()};
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  const KvCacheView& cache() const { return cache_; }

  PagedView View() const {
    return {.shape = shape_,
            .cache = cache_,
            .tables = device_tables_.as<int32_t>(),
            .table_stride = table_stride_,
            .row_offsets = device_row_offsets_.as<int32_t>(),
            .context_lens = device_context_lens_.as<int32_t>(),
            .slopes = shape_.alibi ? slopes_.as<float>() : nullptr,
            .num_seqs = num_seqs()};
  }

  // By the reference kernel.
  std::vector<float> Reference() const {
    const int64_t score_stride = *std::max_element(context_lens_.begin(), context_lens_.end());
    DeviceBuffer scores(int64_t{num_rows()} * shape_.num_q_heads * score_stride * sizeof(double));
    DeviceBuffer out(out_elements() * sizeof(float));
    const dim3 grid(num_rows(), shape_.num_q_heads);
    const auto run = [&]<typename T>() {
      ReferenceKernel<T><<<grid, 512>>>(query_.as<T>(),
                                        query_stride_,
                                        View(),
                                        scale(),
                                        scores.as<double>(),
                                        score_stride,
                                        out.as<float>());
    };
    shape_.dtype == DType::kBFloat16 ? run.operator()<__nv_bfloat16>() : run.operator()<__half>();
    CheckCuda(cudaGetLastError(), "reference");
    CheckCuda(cudaDeviceSynchronize(), "reference");
    return out.To<float>(out_elements());
  }

  std::vector<float> HalvesToFloats(const std::vector<uint16_t>& bits) const {
    std::vector<float> floats(bits.size());
    for (size_t i = 0; i < bits.size(); ++i) {
      floats[i] = shape_.dtype == DType::kBFloat16 ? BFloat16{bits[i]}.ToFloat()
                                                   : Float16{bits[i]}.ToFloat();
    }
    return floats;
  }

  // On the host, straight from the definition; for small batches.
  std::vector<float> HostReference() const {
    const std::vector<float> pool = HalvesToFloats(pool_.To<uint16_t>(pool_.bytes() / 2));
    const std::vector<float> query = HalvesToFloats(query_.To<uint16_t>(query_.bytes() / 2));
    const int32_t dim = shape_.head_dim;
    const int32_t group = shape_.num_q_heads / shape_.num_kv_heads;
    std::vector<float> out(out_elements());
    for (int seq = 0; seq < num_seqs(); ++seq) {
      for (int row = row_offsets_[seq]; row < row_offsets_[seq + 1]; ++row) {
        const int position = context_lens_[seq] - (row_offsets_[seq + 1] - row);
        const int begin = shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0;
        for (int head = 0; head < shape_.num_q_heads; ++head) {
          const auto key = [&](int token) {
            const int64_t block = tables_[seq * table_stride_ + token / shape_.block_size];
            return pool.data() + block * cache_.block_stride + head / group * cache_.head_stride +
                   token % shape_.block_size * dim;
          };
          std::vector<double> weights;
          double high = -std::numeric_limits<double>::infinity();
          for (int token = begin; token <= position; ++token) {
            double dot = 0;
            for (int i = 0; i < dim; ++i) {
              dot += double{query[row * query_stride_ + head * dim + i]} * double{key(token)[i]};
            }
            double x = dot * double{scale()} * shape_.k_scale;
            if (shape_.soft_cap > 0) x = shape_.soft_cap * std::tanh(x / shape_.soft_cap);
            if (shape_.alibi) x += double{Slope(head)} * (token - position);
            weights.push_back(x);
            high = std::max(high, x);
          }
          double sum = 0;
          for (double& w : weights) sum += w = std::exp(w - high);
          for (int i = 0; i < dim; ++i) {
            double value = 0;
            for (int token = begin; token <= position; ++token) {
              value += weights[token - begin] * double{key(token)[cache_.v_offset + i]};
            }
            out[(int64_t{row} * shape_.num_q_heads + head) * dim + i] =
                static_cast<float>(value / sum * shape_.v_scale);
          }
        }
      }
    }
    return out;
  }

  static float Slope(int head) { return std::exp2(-0.25f * static_cast<float>(head % 32 + 1)); }

 private:
  void MakeTables() {
    std::vector<int32_t> ids(num_blocks_);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    // Entries that no row needs would lead far outside the pool.
    tables_.assign(num_seqs() * table_stride_, 0x7ffffff0);
    first_tokens_.assign(num_seqs(), 0);
    int64_t next = 0;
    for (int seq = 0; seq < num_seqs(); ++seq) {
      const int32_t rows = row_offsets_[seq + 1] - row_offsets_[seq];
      if (shape_.window > 0) {
        first_tokens_[seq] = std::max(0, context_lens_[seq] - rows - shape_.window + 1);
      }
      for (int block = first_tokens_[seq] / shape_.block_size;
           block * shape_.block_size < context_lens_[seq];
           ++block) {
        tables_[seq * table_stride_ + block] = ids[next++];
      }
    }
    device_tables_ = DeviceBuffer::From(tables_);
    device_row_offsets_ = DeviceBuffer::From(row_offsets_);
    device_context_lens_ = DeviceBuffer::From(context_lens_);
  }

  void MakeCache() {
    const int64_t head_stride = int64_t{shape_.block_size} * shape_.head_dim + shape_.head_padding;
    cache_ = {.dtype = shape_.dtype,
              .num_blocks = num_blocks_,
              .block_size = shape_.block_size,
              .num_kv_heads = shape_.num_kv_heads,
              .head_dim = shape_.head_dim,
              .block_stride = 2 * shape_.num_kv_heads * head_stride,
              .v_offset = shape_.num_kv_heads * head_stride,
              .head_stride = head_stride,
              .k_scale = shape_.k_scale,
              .v_scale = shape_.v_scale};
    pool_ = DeviceBuffer(num_blocks_ * cache_.block_stride * 2);
    pool_.Fill(0xff);  // NaN in both types
    cache_.data = pool_.data();
    DeviceBuffer first_tokens = DeviceBuffer::From(first_tokens_);
    const dim3 grid(256, num_seqs());
    const auto run = [&]<typename T>() {
      FillCacheKernel<T><<<grid, 256>>>(View(), first_tokens.as<int32_t>());
    };
    shape_.dtype == DType::kBFloat16 ? run.operator()<__nv_bfloat16>() : run.operator()<__half>();
    CheckCuda(cudaGetLastError(), "fill cache");
    CheckCuda(cudaDeviceSynchronize(), "fill cache");
  }

  void MakeQuery() {
    query_stride_ = int64_t{shape_.num_q_heads} * shape_.head_dim + shape_.query_padding;
    query_ = DeviceBuffer(num_rows() * query_stride_ * 2);
    query_.Fill(0xff);
    // Wider than normal scores, so that maxima move.
    constexpr float kQueryFactor = 2.0f;
    const dim3 grid(64, num_seqs());
    const auto run = [&]<typename T>() {
      FillQueryKernel<T><<<grid, 256>>>(query_.as<T>(), query_stride_, View(), kQueryFactor);
    };
    shape_.dtype == DType::kBFloat16 ? run.operator()<__nv_bfloat16>() : run.operator()<__half>();
    CheckCuda(cudaGetLastError(), "fill query");
    out_ = DeviceBuffer(out_elements() * 2 + kGuardBytes);
    std::vector<float> slopes(shape_.num_q_heads);
    for (int i = 0; i < shape_.num_q_heads; ++i) slopes[i] = Slope(i);
    slopes_ = DeviceBuffer::From(slopes);
  }

  void MakePlan() {
    int device = 0;
    int multiprocessors = 0;
    CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
    CheckCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
              "cudaDeviceGetAttribute");
    const auto shape = MakeAttentionPlanShape({.dtype = shape_.dtype,
                                               .head_dim = shape_.head_dim,
                                               .num_q_heads = shape_.num_q_heads,
                                               .num_kv_heads = shape_.num_kv_heads,
                                               .max_seqs = num_seqs() + 5,
                                               .max_rows = num_rows() + 9,
                                               .num_multiprocessors = multiprocessors});
    if (!shape.ok()) {
      std::printf("plan shape: %s\n", shape.status().ToString().c_str());
      std::_Exit(4);
    }
    plan_shape_ = *shape;
    plan_ = DeviceBuffer(plan_shape_.size_bytes());
    workspace_ = DeviceBuffer(AttentionWorkspaceBytes(plan_shape_, shape_.head_dim));
    workspace_.Fill(0);
  }

  static constexpr size_t kGuardBytes = 4096;

  PagedShape shape_;
  std::mt19937 random_;
  std::vector<int32_t> row_offsets_;
  std::vector<int32_t> context_lens_;
  std::vector<int32_t> first_tokens_;
  std::vector<int32_t> tables_;
  int64_t num_blocks_ = 0;
  int64_t table_stride_ = 0;
  int64_t query_stride_ = 0;
  KvCacheView cache_;
  DeviceBuffer device_tables_, device_row_offsets_, device_context_lens_;
  DeviceBuffer pool_, query_, out_, slopes_, plan_, workspace_;
  AttentionPlanShape plan_shape_;
  AttentionBatch batch_;
  PagedAttentionParams params_;
};

}  // namespace pagoda::kernels::cuda::test
