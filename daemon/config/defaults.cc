#include "daemon/config/defaults.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <sched.h>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/topology.h"

namespace pagoda::daemon {
namespace {

using internal::v1::EngineConfig;
using internal::v1::FrontEndConfig;
using internal::v1::ServerConfig;

constexpr uint64_t kGiB = uint64_t{1} << 30;
// A cpu's memory belongs to everybody on the machine.
constexpr uint64_t kMaxDefaultCpuKvBytes = kGiB;
constexpr uint64_t kDefaultCpuKvShare = 4;

struct DeviceDefaults {
  uint32_t block_size;
  uint32_t max_num_seqs;
  uint32_t max_num_batched_tokens;
  uint32_t step_timeout_ms;
};

// cuda: a block is one split tile of the attention kernel, and a step of 8,192 tokens fills the
// GPU. cpu: a step of 512 prompt tokens holds the other streams up for about as long as people
// bear, yet a large model may take a minute for it.
DeviceDefaults DefaultsOf(const std::string& device) {
  if (device == "cuda") return {64, 256, 8192, 10'000};
  if (device == "sim") return {16, 1024, 8192, 60'000};
  return {16, 64, 512, 120'000};
}

// The first number of a file such as /sys/fs/cgroup/memory.max; the greatest one if there is none
// ("max").
uint64_t NumberIn(const char* path) {
  std::ifstream file(path);
  std::string word;
  uint64_t number = 0;
  if (file >> word && absl::SimpleAtoi(word, &number)) return number;
  return std::numeric_limits<uint64_t>::max();
}

uint64_t AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  uint64_t kibibytes = 0;
  while (file >> key >> kibibytes) {
    if (key == "MemAvailable:") return kibibytes * 1024;
    std::getline(file, unit);
  }
  return 0;
}

uint64_t CgroupMemoryLeftBytes() {
  const uint64_t limit = NumberIn("/sys/fs/cgroup/memory.max");
  const uint64_t used = NumberIn("/sys/fs/cgroup/memory.current");
  if (limit == std::numeric_limits<uint64_t>::max()) return limit;
  return used < limit ? limit - used : 0;
}

}  // namespace

MachineFacts MachineFacts::Measure() {
  cpu_set_t cores;
  const bool known = sched_getaffinity(0, sizeof cores, &cores) == 0;
  return {.num_cores = known ? CPU_COUNT(&cores) : 1,
          .num_physical_cores = kernels::cpu::NumUsableCores(),
          .available_memory_bytes = std::min(AvailableMemoryBytes(), CgroupMemoryLeftBytes())};
}

void ResolveDefaults(const MachineFacts& machine, MergedConfig* merged) {
  ServerConfig& config = merged->config;
  EngineConfig* engine = config.mutable_engine();
  FrontEndConfig* front_end = config.mutable_front_end();
  const DeviceDefaults defaults = DefaultsOf(config.worker().device());
  const auto unset = [merged](const char* name) { return merged->IsDefault(name); };

  if (unset("block-size")) engine->set_block_size(defaults.block_size);
  if (unset("max-num-seqs")) engine->set_max_num_seqs(defaults.max_num_seqs);
  if (unset("max-num-batched-tokens")) {
    engine->set_max_num_batched_tokens(defaults.max_num_batched_tokens);
  }
  if (unset("step-timeout")) engine->set_step_timeout_ms(defaults.step_timeout_ms);
  if (unset("kv-cache-memory") && config.worker().device() == "cpu") {
    engine->set_kv_cache_memory_bytes(
        std::min(kMaxDefaultCpuKvBytes, machine.available_memory_bytes / kDefaultCpuKvShare));
  }
  internal::v1::WorkerConfig* worker = config.mutable_worker();
  const uint32_t num_workers = worker->tensor_parallel_size() * worker->replicas();
  if (worker->device() == "cpu" && worker->cpu_threads() == 0 && num_workers > 1) {
    const auto num_cores = static_cast<uint32_t>(machine.num_physical_cores);
    worker->set_cpu_threads(std::max(num_cores / num_workers, 1u));
  }
  if (worker->device() == "cuda" && worker->devices().empty()) {
    for (uint32_t i = 0; i < num_workers; ++i) worker->add_devices(worker->device_index() + i);
  }
  const auto threads = [&machine](int cores_per_thread) {
    return static_cast<uint32_t>(std::clamp(machine.num_cores / cores_per_thread, 1, 4));
  };
  if (unset("output-threads")) front_end->set_output_threads(threads(8));
  if (unset("http-threads")) front_end->set_http_threads(threads(8));
  if (unset("text-threads")) front_end->set_text_threads(threads(4));
}

namespace {

absl::Status CheckDevices(const MergedConfig& merged) {
  const internal::v1::WorkerConfig& worker = merged.config.worker();
  const auto refuse = [&](const char* setting, const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(merged.origins.at(setting), ": ", why));
  };
  if (worker.device() != "cuda" && !worker.devices().empty()) {
    return refuse("devices",
                  absl::StrCat("only GPUs have numbers, and the device is ", worker.device()));
  }
  if (worker.device() != "cuda") return absl::OkStatus();
  if (worker.deterministic()) {
    return refuse("deterministic",
                  "which kernel computes a row depends on the batch on cuda; expected device cpu");
  }
  const uint32_t num_ranks = worker.tensor_parallel_size();
  const uint32_t num_workers = num_ranks * worker.replicas();
  if (worker.devices_size() != static_cast<int>(num_workers)) {
    const std::string whose =
        worker.replicas() > 1 ? absl::StrCat(worker.replicas(), " replicas of ") : "";
    return refuse("devices",
                  absl::StrCat("expected a GPU for each of the ",
                               whose,
                               num_ranks,
                               " workers of tensor-parallel-size, there are ",
                               worker.devices_size()));
  }
  const std::set<uint32_t> different(worker.devices().begin(), worker.devices().end());
  if (different.size() < num_workers && worker.tensor_parallel_group() == "nccl") {
    return refuse("tensor-parallel-group",
                  "nccl takes one worker a GPU, and devices names one twice; expected ipc or auto");
  }
  std::map<uint32_t, uint32_t> replica_of;
  for (uint32_t i = 0; i < num_workers; ++i) {
    const uint32_t device = worker.devices(static_cast<int>(i));
    const uint32_t replica = replica_of.try_emplace(device, i / num_ranks).first->second;
    if (replica == i / num_ranks) continue;
    return refuse("devices",
                  absl::StrCat("GPU ",
                               device,
                               " is named for replicas ",
                               replica,
                               " and ",
                               i / num_ranks,
                               "; expected GPUs of its own for each replica"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckConfig(const MergedConfig& merged) {
  const ServerConfig& config = merged.config;
  std::set<std::string> names;
  for (const std::string& name : config.model().served_names()) {
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(merged.origins.at("served-model-name"), ": ", name, " is given twice"));
    }
  }
  PAGODA_RETURN_IF_ERROR(CheckDevices(merged));
  const FrontEndConfig& front_end = config.front_end();
  if (front_end.grpc_address().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        merged.origins.at("grpc-address"), ": expected HOST:PORT or unix:PATH, it is empty"));
  }
  const bool any_port = absl::EndsWith(front_end.grpc_address(), ":0");
  if (front_end.grpc_address() == front_end.metrics_address() && !any_port) {
    return absl::InvalidArgumentError(absl::StrCat("grpc-address and metrics-address are both ",
                                                   front_end.grpc_address(),
                                                   ": expected two different addresses"));
  }
  const std::string& http_address = front_end.http_address();
  for (const auto& [name, other] : {std::pair("grpc-address", &front_end.grpc_address()),
                                    std::pair("metrics-address", &front_end.metrics_address())}) {
    // Both may be none.
    if (http_address.empty() || http_address == "none" || http_address != *other ||
        absl::EndsWith(http_address, ":0"))
      continue;
    return absl::InvalidArgumentError(absl::StrCat("http-address and ",
                                                   name,
                                                   " are both ",
                                                   http_address,
                                                   ": expected two different addresses"));
  }
  return absl::OkStatus();
}

absl::Status CheckReplicas(const MachineFacts& machine, const MergedConfig& merged) {
  const internal::v1::WorkerConfig& worker = merged.config.worker();
  const auto num_cores = static_cast<uint32_t>(std::max(machine.num_cores, 1));
  if (worker.device() != "cpu" || worker.replicas() <= num_cores) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(merged.origins.at("replicas"),
                                                 ": ",
                                                 worker.replicas(),
                                                 " replicas on ",
                                                 num_cores,
                                                 num_cores == 1 ? " core" : " cores",
                                                 " would wait for each other; expected 1 to ",
                                                 num_cores));
}

}  // namespace pagoda::daemon
