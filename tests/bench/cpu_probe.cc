#include "tests/bench/cpu_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <immintrin.h>
#include <iterator>
#include <numeric>
#include <sys/mman.h>
#include <thread>

namespace pagoda::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kStreams = 4;
constexpr size_t kStepBytes = 256;  // of one stream: four loads of 512 bits
constexpr size_t kHugePageBytes = size_t{2} << 20;

// Keeps results of measured loops alive.
std::atomic<uint64_t> g_sink{0};

// Runs function(thread_idx) on all threads, the caller among them (so that no thread waits for a
// processor that another of them spins on), and returns the seconds from the common start to the
// last end.
double TimeTogether(int num_threads, const std::function<void(int)>& function) {
  std::atomic<int> num_ready{0};
  std::atomic<bool> started{false};
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      num_ready.fetch_add(1);
      while (!started.load(std::memory_order_acquire)) _mm_pause();
      function(i);
    });
  }
  while (num_ready.load() < num_threads - 1) std::this_thread::yield();
  const auto start = Clock::now();
  started.store(true, std::memory_order_release);
  function(0);
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// With `prefetch_bytes`, each line is asked for that far ahead; 0 leaves it to the processor.
template <size_t prefetch_bytes>
__attribute__((target("avx512f"))) uint64_t ReadAvx512(const char* begin, size_t stream_bytes) {
  __m512i sums[kStreams] = {};
  for (size_t i = 0; i < stream_bytes; i += kStepBytes) {
    for (size_t s = 0; s < kStreams; ++s) {
      const char* p = begin + s * stream_bytes + i;
      for (size_t u = 0; u < kStepBytes; u += 64) {
        if (prefetch_bytes > 0) _mm_prefetch(p + u + prefetch_bytes, _MM_HINT_T1);
        sums[s] = _mm512_add_epi64(sums[s], _mm512_load_si512(p + u));
      }
    }
  }
  uint64_t lanes[kStreams * 8];
  std::memcpy(lanes, sums, sizeof(lanes));
  return std::accumulate(std::begin(lanes), std::end(lanes), uint64_t{0});
}

template <size_t prefetch_bytes>
__attribute__((target("avx2"))) uint64_t ReadAvx2(const char* begin, size_t stream_bytes) {
  __m256i sums[kStreams] = {};
  for (size_t i = 0; i < stream_bytes; i += 64) {
    for (size_t s = 0; s < kStreams; ++s) {
      const char* p = begin + s * stream_bytes + i;
      if (prefetch_bytes > 0) _mm_prefetch(p + prefetch_bytes, _MM_HINT_T1);
      for (size_t u = 0; u < 64; u += 32) {
        sums[s] =
            _mm256_add_epi64(sums[s], _mm256_load_si256(reinterpret_cast<const __m256i*>(p + u)));
      }
    }
  }
  uint64_t lanes[kStreams * 4];
  std::memcpy(lanes, sums, sizeof(lanes));
  return std::accumulate(std::begin(lanes), std::end(lanes), uint64_t{0});
}

void Keep(const void* results, size_t size_bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < size_bytes; ++i) sum += static_cast<const unsigned char*>(results)[i];
  g_sink.fetch_add(sum);
}

// Chains enough to cover latency times throughput on every processor known to us: 6 cycles x 2 a
// cycle, and some more.
constexpr int kChains = 16;

__attribute__((target("avx512f,avx512bf16"))) void DotChains(int64_t steps) {
  __m512 acc[kChains];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  const __m512i bits = _mm512_set1_epi32(0x3c003c00);
  __m512bh x;
  static_assert(sizeof(x) == sizeof(bits));
  __builtin_memcpy(&x, &bits, sizeof(x));
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbf16_ps(acc[c], x, x);
  }
  Keep(acc, sizeof(acc));
}

__attribute__((target("avx512f"))) void FmaChainsAvx512(int64_t steps) {
  __m512 acc[kChains];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  const __m512 x = _mm512_set1_ps(static_cast<float>(steps) * 1e-9f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_fmadd_ps(x, x, acc[c]);
  }
  Keep(acc, sizeof(acc));
}

__attribute__((target("avx2,fma"))) void FmaChainsAvx2(int64_t steps) {
  constexpr int kAvx2Chains = 12;  // of 16 registers
  __m256 acc[kAvx2Chains];
  for (__m256& a : acc) a = _mm256_setzero_ps();
  const __m256 x = _mm256_set1_ps(static_cast<float>(steps) * 1e-9f);
  for (int64_t i = 0; i < steps * kChains / kAvx2Chains; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kAvx2Chains; ++c) acc[c] = _mm256_fmadd_ps(x, x, acc[c]);
  }
  Keep(acc, sizeof(acc));
}

struct Chains {
  void (*run)(int64_t steps);
  double flops_per_step;
};

Chains ChainsOf(Instruction instruction) {
  if (instruction == Instruction::kBf16Dot) return {DotChains, 64.0 * kChains};
  if (__builtin_cpu_supports("avx512f")) return {FmaChainsAvx512, 32.0 * kChains};
  return {FmaChainsAvx2, 16.0 * kChains};
}

}  // namespace

ReadProbe::ReadProbe(int num_threads, size_t size_bytes) : num_threads_(num_threads) {
  const size_t unit = static_cast<size_t>(num_threads) * kStreams * kHugePageBytes;
  size_bytes_ = (size_bytes + unit - 1) / unit * unit;
  buffer_ = static_cast<char*>(std::aligned_alloc(kHugePageBytes, size_bytes_));
  if (buffer_ == nullptr) {
    std::perror("read probe");
    std::exit(1);
  }
  madvise(buffer_, size_bytes_, MADV_HUGEPAGE);
  // Each thread touches first what it will read.
  TimeTogether(num_threads_, [this](int i) {
    const size_t part = size_bytes_ / num_threads_;
    std::fill_n(buffer_ + i * part, part, static_cast<char>(1));
  });
}

ReadProbe::~ReadProbe() { std::free(buffer_); }

double ReadProbe::Measure() {
  if (!__builtin_cpu_supports("avx512f")) {
    return std::max(MeasureWith(ReadAvx2<0>), MeasureWith(ReadAvx2<2048>));
  }
  return std::max(MeasureWith(ReadAvx512<0>), MeasureWith(ReadAvx512<2048>));
}

double ReadProbe::MeasureWith(uint64_t (*read)(const char* begin, size_t stream_bytes)) {
  const size_t part = size_bytes_ / num_threads_;
  const double seconds = TimeTogether(
      num_threads_, [&](int i) { g_sink.fetch_add(read(buffer_ + i * part, part / kStreams)); });
  return static_cast<double>(size_bytes_) / seconds;
}

bool HasInstruction(Instruction instruction) {
  if (instruction == Instruction::kBf16Dot) {
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512f");
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

double MeasurePeakFlops(Instruction instruction, int num_threads, double seconds) {
  if (!HasInstruction(instruction)) return 0;
  const Chains chains = ChainsOf(instruction);
  int64_t steps = 10000;
  // The first runs find how many steps take that long; clocks have risen by then.
  for (double took = 0; took < seconds / 2; steps *= 2) {
    took = TimeTogether(1, [&](int) { chains.run(steps); });
  }
  const double took = TimeTogether(num_threads, [&](int) { chains.run(steps); });
  return static_cast<double>(steps) * chains.flops_per_step * num_threads / took;
}

CpuFloors MeasureCpuFloors(int num_threads, size_t size_bytes, int passes) {
  CpuFloors best;
  ReadProbe read(num_threads, size_bytes);
  for (int i = 0; i < passes; ++i) {
    best.read_bytes_per_second = std::max(best.read_bytes_per_second, read.Measure());
    best.bf16_flops =
        std::max(best.bf16_flops, MeasurePeakFlops(Instruction::kBf16Dot, num_threads));
    best.float32_flops =
        std::max(best.float32_flops, MeasurePeakFlops(Instruction::kFloat32Fma, num_threads));
  }
  return best;
}

}  // namespace pagoda::bench
