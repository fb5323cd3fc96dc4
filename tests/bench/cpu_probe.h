#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// What this machine can do, measured by loops that do nothing else: the floors of the CPU
// benchmarks. They share no code with the kernels. Machines drift and neighbours come and go, so a
// benchmark alternates one pass of a probe with one run of its subject and keeps the best of each.

namespace pagoda::bench {

// Streams a buffer of at least 2 GB through every thread with the widest loads, four streams a
// thread.
class ReadProbe {
 public:
  // Maps and fills the buffer. `size_bytes` is rounded up to a whole number of streams.
  ReadProbe(int num_threads, size_t size_bytes);
  ~ReadProbe();
  ReadProbe(const ReadProbe&) = delete;
  ReadProbe& operator=(const ReadProbe&) = delete;

  // The better of a pass with and a pass without prefetch instructions; bytes per second.
  double Measure();

 private:
  double MeasureWith(uint64_t (*read)(const char* begin, size_t stream_bytes));

  int num_threads_;
  size_t size_bytes_;
  char* buffer_;
};

enum class Instruction {
  kBf16Dot,     // vdpbf16ps, 512 bits: 64 operations
  kFloat32Fma,  // the widest fused multiply-add of the processor: 32 or 16 operations
};

// False where the processor has no such instruction.
bool HasInstruction(Instruction instruction);

// Floating-point operations per second of independent chains of `instruction` on all threads, over
// about `seconds`.
double MeasurePeakFlops(Instruction instruction, int num_threads, double seconds = 0.02);

// Best of `passes`, the default being what the goals are stated for.
struct CpuFloors {
  double read_bytes_per_second = 0;
  double bf16_flops = 0;  // 0: no such instruction
  double float32_flops = 0;
};
CpuFloors MeasureCpuFloors(int num_threads, size_t size_bytes = size_t{2} << 30, int passes = 9);

}  // namespace pagoda::bench
