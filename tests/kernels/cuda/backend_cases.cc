#include <chrono>
#include <cstring>
#include <thread>

#include "absl/strings/match.h"
#include "kernels/base/status_macros.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace pagoda::kernels::cuda {
namespace {

absl::Status Memory(CudaBackend& backend) {
  Buffer device = Must(backend.Allocate(1 << 20, "test"));
  const auto zeros = Download<uint8_t>(backend, device.data(), 1 << 20);
  PAGODA_RETURN_IF_ERROR(ExpectTrue(std::count(zeros.begin(), zeros.end(), 0) == 1 << 20,
                                    "fresh device memory is not zero"));
  PAGODA_RETURN_IF_ERROR(
      ExpectTrue(reinterpret_cast<uintptr_t>(device.data()) % 256 == 0, "not 256-byte aligned"));
  Buffer host = Must(backend.AllocateHost(4096, "test"));
  PAGODA_RETURN_IF_ERROR(ExpectTrue(host.as<char>()[17] == 0, "fresh host memory is not zero"));
  const DeviceInfo info = Must(backend.Info());
  PAGODA_RETURN_IF_ERROR(ExpectTrue(
      info.total_memory_bytes > info.free_memory_bytes && info.free_memory_bytes > 0, "info"));
  const auto huge = backend.Allocate(size_t{1} << 48, "a test of too much");
  PAGODA_RETURN_IF_ERROR(ExpectTrue(absl::IsResourceExhausted(huge.status()) &&
                                        absl::StrContains(huge.status().message(), "too much"),
                                    absl::StrCat("huge: ", huge.status().ToString())));
  // The failure leaves nothing behind.
  return backend.Synchronize();
}

absl::Status Events(CudaBackend& backend) {
  Buffer device = Must(backend.Allocate(64 << 20, "test"));
  Buffer host = Must(backend.AllocateHost(64 << 20, "test"));
  host.as<int>()[12345] = 77;
  std::vector<uint64_t> events;
  for (int i = 0; i < 20; ++i) {
    PAGODA_RETURN_IF_ERROR(backend.CopyToDevice(device.data(), host.data(), 64 << 20));
    events.push_back(Must(backend.RecordEvent()));
  }
  int64_t polls = 0;
  while (!Must(backend.EventPassed(events[10]))) ++polls;
  PAGODA_RETURN_IF_ERROR(ExpectTrue(polls > 0, "64 MB were copied in no time"));
  PAGODA_RETURN_IF_ERROR(ExpectTrue(Must(backend.EventPassed(events[3])), "order of events"));
  PAGODA_RETURN_IF_ERROR(backend.Synchronize());
  PAGODA_RETURN_IF_ERROR(ExpectTrue(Must(backend.EventPassed(events[19])), "last event"));
  PAGODA_RETURN_IF_ERROR(
      ExpectTrue(!backend.EventPassed(events[19] + 1).ok(), "an event that is not recorded"));
  return ExpectTrue(Download<int>(backend, device.data(), 20000)[12345] == 77, "copy");
}

absl::Status Errors(CudaBackend& backend) {
  const auto missing = CudaBackend::Create({.device_index = 99});
  PAGODA_RETURN_IF_ERROR(ExpectTrue(absl::IsNotFound(missing.status()), "device 99"));
  PAGODA_RETURN_IF_ERROR(
      ExpectTrue(absl::IsUnimplemented(backend.ActivationDType(DType::kFloat32).status()),
                 "float32 activations"));
  Buffer memory = Must(backend.Allocate(4096, "test"));
  const absl::Status wrong = backend.RmsNorm({.x = memory.data(),
                                              .weight = memory.as<float>(),
                                              .y = memory.data(),
                                              .rows = 1,
                                              .width = 64,
                                              .x_stride = 64,
                                              .y_stride = 64,
                                              .dtype = DType::kFloat32});
  PAGODA_RETURN_IF_ERROR(ExpectTrue(!wrong.ok(), "rms_norm of float32"));
  PAGODA_RETURN_IF_ERROR(ExpectTrue(!backend.LaunchGraph(12345).ok(), "graph 12345"));
  PAGODA_RETURN_IF_ERROR(ExpectTrue(!backend.EndGraph().ok(), "EndGraph alone"));
  return backend.Synchronize();
}

// A recorded chain of dependent kernels gives what the same calls give one by one, replay after
// replay.
absl::Status Graphs(CudaBackend& backend) {
  constexpr int kRows = 3, kWidth = 512;
  const auto x = Encode(DType::kBFloat16, RandomFloats(kRows * kWidth * 2, 1));
  const Buffer input = Upload(backend, x);
  const Buffer norm = Upload(backend, RandomFloats(kWidth, 2));
  const Buffer a = Must(backend.Allocate(kRows * kWidth * 2, "test"));
  const Buffer b = Must(backend.Allocate(kRows * kWidth * 2, "test"));
  const Buffer weight = Must(backend.Allocate(kWidth * kWidth * 2, "test"));
  const LinearWeight linear = {
      .dtype = DType::kBFloat16, .data = weight.data(), .n = kWidth, .k = kWidth};
  PAGODA_RETURN_IF_ERROR(backend.FillNormal({.weight = linear, .stddev = 0.05f, .seed = 3}));
  const auto chain = [&](bool step_by_step) -> absl::Status {
    const auto pause = [&] { return step_by_step ? backend.Synchronize() : absl::OkStatus(); };
    PAGODA_RETURN_IF_ERROR(backend.SiluMul({.gate_up = input.data(),
                                            .y = a.data(),
                                            .rows = kRows,
                                            .width = kWidth,
                                            .dtype = DType::kBFloat16}));
    for (int layer = 0; layer < 12; ++layer) {
      PAGODA_RETURN_IF_ERROR(pause());
      PAGODA_RETURN_IF_ERROR(backend.RmsNorm({.x = a.data(),
                                              .weight = norm.as<float>(),
                                              .y = b.data(),
                                              .rows = kRows,
                                              .width = kWidth,
                                              .x_stride = kWidth,
                                              .y_stride = kWidth,
                                              .dtype = DType::kBFloat16}));
      PAGODA_RETURN_IF_ERROR(pause());
      PAGODA_RETURN_IF_ERROR(backend.Linear({.x = b.data(),
                                             .weight = linear,
                                             .residual = a.data(),
                                             .y = a.data(),
                                             .m = kRows,
                                             .x_stride = kWidth,
                                             .y_stride = kWidth,
                                             .x_dtype = DType::kBFloat16,
                                             .y_dtype = DType::kBFloat16}));
    }
    return pause();
  };
  PAGODA_RETURN_IF_ERROR(chain(true));
  const auto expected = Download<uint16_t>(backend, a.data(), kRows * kWidth);
  PAGODA_RETURN_IF_ERROR(chain(false));
  PAGODA_RETURN_IF_ERROR(ExpectTrue(
      Download<uint16_t>(backend, a.data(), kRows * kWidth) == expected, "a chain without pauses"));
  PAGODA_RETURN_IF_ERROR(backend.BeginGraph());
  PAGODA_RETURN_IF_ERROR(ExpectTrue(!backend.Allocate(16, "test").ok(), "Allocate in a graph"));
  PAGODA_RETURN_IF_ERROR(chain(false));
  const GraphId graph = Must(backend.EndGraph());
  for (int i = 0; i < 5; ++i) {
    for (int repeat = 0; repeat <= i; ++repeat) PAGODA_RETURN_IF_ERROR(backend.LaunchGraph(graph));
    PAGODA_RETURN_IF_ERROR(ExpectTrue(
        Download<uint16_t>(backend, a.data(), kRows * kWidth) == expected, "a recorded chain"));
  }
  return absl::OkStatus();
}

// Pinned memory of every size and alignment, by kernels and by copy engines, there and back while
// others are under way.
absl::Status PinnedCopies(CudaBackend& backend) {
  constexpr size_t kBytes = size_t{256} << 10;
  const Buffer from = Must(backend.AllocateHost(kBytes, "test"));
  const Buffer to = Must(backend.AllocateHost(kBytes, "test"));
  const Buffer device = Must(backend.Allocate(kBytes, "test"));
  for (size_t i = 0; i < kBytes; ++i) from.as<uint8_t>()[i] = static_cast<uint8_t>(i * 7 + i / 251);
  for (const size_t size : {1, 3, 4, 12, 16, 1000, 4096, 4100, 65536, 65540, 200000}) {
    for (const size_t offset : {0, 4, 16, 20, 1}) {
      std::memset(to.data(), 0, kBytes);
      char* const middle = device.as<char>() + offset;
      PAGODA_RETURN_IF_ERROR(backend.CopyToDevice(middle, from.as<char>() + offset, size));
      PAGODA_RETURN_IF_ERROR(backend.CopyToHost(to.as<char>() + offset, middle, size));
      PAGODA_RETURN_IF_ERROR(backend.Synchronize());
      const bool same = std::memcmp(to.as<char>() + offset, from.as<char>() + offset, size) == 0 &&
                        to.as<char>()[offset + size] == 0 &&
                        (offset == 0 || to.as<char>()[offset - 1] == 0);
      PAGODA_RETURN_IF_ERROR(ExpectTrue(same, absl::StrCat(size, " bytes at offset ", offset)));
    }
  }
  return absl::OkStatus();
}

// A fault of the device is told at the next event, with the call and the device. Nothing works
// afterwards.
absl::Status Fault(CudaBackend& backend) {
  const Buffer host = Must(backend.AllocateHost(64, "test"));
  auto* const nowhere = reinterpret_cast<void*>(uintptr_t{64});
  absl::Status status = backend.CopyToDevice(nowhere, host.data(), 64);
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    const absl::StatusOr<uint64_t> event = backend.RecordEvent();
    status = event.ok() ? backend.EventPassed(*event).status() : event.status();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::string message(status.message());
  std::printf("     %s\n", message.c_str());
  return ExpectTrue(status.code() == absl::StatusCode::kInternal &&
                        absl::StrContains(message, "cudaErrorIllegalAddress") &&
                        (absl::StrContains(message, "cudaStreamQuery") ||
                         absl::StrContains(message, "cudaLaunchKernel")) &&
                        absl::StrContains(message, backend.context().label),
                    "the fault's message");
}

}  // namespace

void RunFaultCases(CheckRunner& runner, CudaBackend& backend) {
  runner.Run("fault/illegal_address", [&] { return Fault(backend); });
}

void RunBackendCases(CheckRunner& runner, CudaBackend& backend) {
  runner.Run("backend/memory", [&] { return Memory(backend); });
  runner.Run("backend/pinned_copies", [&] { return PinnedCopies(backend); });
  runner.Run("backend/events", [&] { return Events(backend); });
  runner.Run("backend/errors", [&] { return Errors(backend); });
  runner.Run("backend/graphs", [&] { return Graphs(backend); });
}

}  // namespace pagoda::kernels::cuda
