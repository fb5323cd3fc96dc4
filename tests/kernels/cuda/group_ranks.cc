#include "tests/kernels/cuda/group_ranks.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/launch.h"
#include "parallel/shm_group.h"

namespace pagoda::kernels::cuda::test {
namespace {

constexpr int kMaxTestRanks = 8;

// What ranks leave behind, in memory shared with whoever started them.
struct Outcome {
  volatile bool ended = false;
  char message[1000] = {};
};

absl::Status OpenDevice(int device, DeviceContext* context) {
  PAGODA_RETURN_IF_ERROR(Cuda(cudaSetDevice(device), "cudaSetDevice"));
  cudaDeviceProp properties = {};
  PAGODA_RETURN_IF_ERROR(
      Cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  context->device_index = device;
  context->name = properties.name;
  context->label = absl::StrCat("device ", device, " (", properties.name, ")");
  context->num_sms = properties.multiProcessorCount;
  context->max_block_shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  context->l2_bytes = static_cast<size_t>(properties.l2CacheSize);
  return Cuda(cudaStreamCreateWithFlags(&context->stream, cudaStreamNonBlocking),
              "cudaStreamCreate");
}

void RunOne(const RankSetup& setup,
            int index,
            parallel::ProcessGroup* host,
            const std::function<absl::Status(Rank&)>& run,
            Outcome* outcome) {
  Rank rank = {.rank = index, .num_ranks = setup.num_ranks, .host = host};
  absl::Status status = OpenDevice(index % setup.num_devices, &rank.context);
  if (status.ok()) status = run(rank);
  // The others must not wait for one that has failed.
  if (!status.ok()) host->Abort();
  absl::SNPrintF(outcome->message,
                 sizeof(outcome->message),
                 "%s",
                 status.ok() ? "" : std::string(status.ToString()));
  outcome->ended = true;
}

// A process that ends when `run` has.
pid_t Start(int timeout_seconds, const std::function<void()>& run) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(timeout_seconds);
  run();
  std::fflush(stdout);
  // No destructors: a context with a failed kernel may take long.
  _exit(0);
}

void RunThreads(const RankSetup& setup,
                const std::function<absl::Status(Rank&)>& run,
                Outcome* outcomes) {
  auto hosts = parallel::MakeThreadGroups(setup.num_ranks);
  std::vector<std::thread> threads;
  for (int i = 0; i < setup.num_ranks; ++i) {
    threads.emplace_back([&, i] { RunOne(setup, i, (*hosts)[i].get(), run, &outcomes[i]); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

bool Rank::All(bool own) const {
  char mine = own ? 1 : 0;
  char all[kMaxTestRanks] = {};
  if (!host->AllGather(&mine, all, 1).ok()) return false;
  for (int i = 0; i < num_ranks; ++i) {
    if (all[i] == 0) return false;
  }
  return true;
}

std::string RunRanks(const RankSetup& setup, const std::function<absl::Status(Rank&)>& run) {
  // Kernels of ranks in one process wait for each other: none may be loaded only when another has
  // ended, and each stream needs a queue of its own.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  auto* const outcomes = static_cast<Outcome*>(mmap(nullptr,
                                                    sizeof(Outcome) * kMaxTestRanks,
                                                    PROT_READ | PROT_WRITE,
                                                    MAP_SHARED | MAP_ANONYMOUS,
                                                    -1,
                                                    0));
  for (int i = 0; i < kMaxTestRanks; ++i) new (&outcomes[i]) Outcome();
  const bool threads = setup.kind == RankKind::kThreads;
  const absl::StatusOr<parallel::UniqueFd> memory = parallel::MakeShmGroupMemory(setup.num_ranks);
  if (!memory.ok()) return memory.status().ToString();
  std::vector<pid_t> children;
  if (threads) {
    children.push_back(Start(setup.timeout_seconds, [&] { RunThreads(setup, run, outcomes); }));
  } else {
    for (int i = 0; i < setup.num_ranks; ++i) {
      children.push_back(Start(setup.timeout_seconds, [&, i] {
        auto host = parallel::MakeShmGroup(*memory, i, setup.num_ranks);
        RunOne(setup, i, host->get(), run, &outcomes[i]);
      }));
    }
  }
  std::string wrong;
  bool was_killed = false;
  for (size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    waitpid(children[i], &status, 0);
    const bool by_signal = WIFSIGNALED(status);
    was_killed = was_killed || (by_signal && WTERMSIG(status) == SIGKILL);
    if (by_signal && WTERMSIG(status) != SIGKILL) {
      absl::StrAppendFormat(&wrong, "process %d ended by signal %d; ", i, WTERMSIG(status));
    }
  }
  for (int i = 0; i < setup.num_ranks; ++i) {
    if (!outcomes[i].ended && !was_killed) {
      absl::StrAppendFormat(&wrong, "rank %d did not end; ", i);
    } else if (outcomes[i].message[0] != '\0') {
      absl::StrAppendFormat(&wrong, "rank %d: %s; ", i, outcomes[i].message);
    }
  }
  munmap(outcomes, sizeof(Outcome) * kMaxTestRanks);
  return wrong;
}

int NumDevices() {
  const pid_t child = Start(60, [] {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    _exit(count);
  });
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

absl::Status Cuda(cudaError_t error, absl::string_view call) {
  return CudaStatus(error, call, "a check of groups");
}

}  // namespace pagoda::kernels::cuda::test
