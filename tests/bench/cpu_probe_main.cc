// cpu_probe [THREADS [GIB]]: prints the floors of this machine, best of nine passes.
#include <cstdio>
#include <cstdlib>

#include "tests/bench/cpu_probe.h"

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const auto gib = static_cast<size_t>(argc > 2 ? std::atoi(argv[2]) : 2);
  if (num_threads < 1 || gib < 1) {
    std::fprintf(stderr, "usage: cpu_probe [THREADS [GIB]]\n");
    return 2;
  }
  const pagoda::bench::CpuFloors floors = pagoda::bench::MeasureCpuFloors(num_threads, gib << 30);
  std::printf("threads            %d\n", num_threads);
  std::printf("read bandwidth     %.2f GB/s\n", floors.read_bytes_per_second / 1e9);
  std::printf("vdpbf16ps          %.1f GFLOP/s\n", floors.bf16_flops / 1e9);
  std::printf("fused multiply-add %.1f GFLOP/s\n", floors.float32_flops / 1e9);
  return 0;
}
