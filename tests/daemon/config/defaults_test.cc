#include "daemon/config/defaults.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kGiB = uint64_t{1} << 30;

MergedConfig Resolve(SettingTexts flags, const MachineFacts& machine) {
  SettingSources sources;
  sources.flags = std::move(flags);
  auto merged = MergeSettings(sources);
  EXPECT_TRUE(merged.ok()) << merged.status();
  ResolveDefaults(machine, &*merged);
  return *std::move(merged);
}

TEST(DefaultsTest, FollowTheDevice) {
  const MachineFacts machine{.num_cores = 2, .available_memory_bytes = 64 * kGiB};
  const MergedConfig cpu = Resolve({}, machine);
  EXPECT_EQ(cpu.config.worker().device(), "cpu");
  EXPECT_EQ(cpu.config.engine().block_size(), 16u);
  EXPECT_EQ(cpu.config.engine().max_num_batched_tokens(), 512u);
  EXPECT_EQ(cpu.config.engine().kv_cache_memory_bytes(), kGiB);
  EXPECT_EQ(cpu.config.engine().step_timeout_ms(), 120'000u);
  const MergedConfig cuda = Resolve({{"device", {"cuda", "--device"}}}, machine);
  EXPECT_EQ(cuda.config.engine().block_size(), 64u);
  EXPECT_EQ(cuda.config.engine().max_num_batched_tokens(), 8192u);
  EXPECT_EQ(cuda.config.engine().kv_cache_memory_bytes(), 0u);
  EXPECT_EQ(cuda.config.engine().step_timeout_ms(), 10'000u);
  const MergedConfig sim = Resolve({{"device", {"sim", "--device"}}}, machine);
  EXPECT_EQ(sim.config.engine().max_num_seqs(), 1024u);
  EXPECT_EQ(sim.config.engine().kv_cache_memory_bytes(), 0u);
}

TEST(DefaultsTest, FollowTheMachine) {
  const MergedConfig small = Resolve({}, {.num_cores = 1, .available_memory_bytes = kGiB});
  EXPECT_EQ(small.config.engine().kv_cache_memory_bytes(), kGiB / 4);
  EXPECT_EQ(small.config.front_end().output_threads(), 1u);
  EXPECT_EQ(small.config.front_end().text_threads(), 1u);
  const MergedConfig large = Resolve({}, {.num_cores = 128, .available_memory_bytes = 512 * kGiB});
  EXPECT_EQ(large.config.front_end().output_threads(), 4u);
  EXPECT_EQ(large.config.front_end().text_threads(), 4u);
}

// Ranks share the cores; a worker that is alone asks its machine.
TEST(DefaultsTest, ThreadsOfSeveralRanks) {
  const auto threads = [](SettingTexts flags) {
    return Resolve(std::move(flags), {.num_cores = 16, .num_physical_cores = 8})
        .config.worker()
        .cpu_threads();
  };
  const SettingText three{"3", "--tensor-parallel-size"};
  EXPECT_EQ(threads({}), 0u);
  EXPECT_EQ(threads({{"tensor-parallel-size", three}}), 2u);
  EXPECT_EQ(threads({{"tensor-parallel-size", three}, {"threads", {"5", "--threads"}}}), 5u);
  EXPECT_EQ(Resolve({{"tensor-parallel-size", three}}, {.num_physical_cores = 2})
                .config.worker()
                .cpu_threads(),
            1u);
}

std::vector<uint32_t> DevicesOf(SettingTexts flags) {
  const auto devices = Resolve(std::move(flags), {}).config.worker().devices();
  return {devices.begin(), devices.end()};
}

TEST(DefaultsTest, GpusOfWorkers) {
  const SettingText cuda{"cuda", "--device"}, three{"3", "--tensor-parallel-size"};
  EXPECT_THAT(DevicesOf({}), IsEmpty());
  EXPECT_THAT(DevicesOf({{"device", cuda}}), ElementsAre(0u));
  EXPECT_THAT(DevicesOf({{"device", cuda}, {"device-index", {"2", "--device-index"}}}),
              ElementsAre(2u));
  EXPECT_THAT(DevicesOf({{"device", cuda},
                         {"device-index", {"2", "--device-index"}},
                         {"tensor-parallel-size", three}}),
              ElementsAre(2u, 3u, 4u));
  EXPECT_THAT(DevicesOf({{"device", cuda},
                         {"devices", {"4, 0,4", "--devices"}},
                         {"tensor-parallel-size", three}}),
              ElementsAre(4u, 0u, 4u));
}

TEST(DefaultsTest, LeaveWhatWasGiven) {
  const MergedConfig merged = Resolve({{"block-size", {"4", "--block-size"}},
                                       {"kv-cache-memory", {"0", "--kv-cache-memory"}},
                                       {"max-num-seqs", {"7", "--max-num-seqs"}},
                                       {"step-timeout", {"3s", "--step-timeout"}},
                                       {"text-threads", {"9", "--text-threads"}}},
                                      {.num_cores = 2, .available_memory_bytes = kGiB});
  EXPECT_EQ(merged.config.engine().block_size(), 4u);
  EXPECT_EQ(merged.config.engine().kv_cache_memory_bytes(), 0u);
  EXPECT_EQ(merged.config.engine().max_num_seqs(), 7u);
  EXPECT_EQ(merged.config.engine().step_timeout_ms(), 3'000u);
  EXPECT_EQ(merged.config.front_end().text_threads(), 9u);
}

TEST(DefaultsTest, NothingIsLeftUnresolved) {
  for (const char* device : {"cpu", "cuda"}) {
    const MergedConfig merged =
        Resolve({{"device", {device, "--device"}},
                 {"tensor-parallel-size", {"2", "PAGODA_TENSOR_PARALLEL_SIZE"}}},
                MachineFacts::Measure());
    SettingSources again;
    const auto file = ParseConfigFile(PrintConfig(merged), "printed");
    ASSERT_TRUE(file.ok()) << file.status();
    again.file = *file;
    const auto merged_again = MergeSettings(again);
    ASSERT_TRUE(merged_again.ok()) << merged_again.status();
    EXPECT_EQ(merged_again->config.SerializeAsString(), merged.config.SerializeAsString());
    EXPECT_TRUE(CheckConfig(*merged_again).ok()) << CheckConfig(*merged_again);
  }
}

TEST(DefaultsTest, MeasuresThisMachine) {
  const MachineFacts machine = MachineFacts::Measure();
  EXPECT_GE(machine.num_cores, 1);
  EXPECT_GT(machine.available_memory_bytes, uint64_t{1} << 20);
}

TEST(CheckConfigTest, EachWorkerHasAGpu) {
  const auto message = [](SettingTexts flags) {
    return std::string(CheckConfig(Resolve(std::move(flags), {})).message());
  };
  const SettingText cuda{"cuda", "--device"}, two{"2", "--tensor-parallel-size"};
  const SettingText shared{"1,1", "PAGODA_DEVICES"}, nccl{"nccl", "--tensor-parallel-group"};
  EXPECT_EQ(message({{"device", cuda}, {"tensor-parallel-size", two}}), "");
  EXPECT_EQ(message({{"device", cuda}, {"tensor-parallel-size", two}, {"devices", shared}}), "");
  EXPECT_THAT(message({{"devices", shared}}), HasSubstr("PAGODA_DEVICES: only GPUs have numbers"));
  EXPECT_THAT(message({{"device", cuda}, {"devices", shared}}),
              HasSubstr("PAGODA_DEVICES: expected a GPU for each of the 1 workers of "
                        "tensor-parallel-size, there are 2"));
  EXPECT_THAT(message({{"device", cuda},
                       {"tensor-parallel-size", two},
                       {"devices", shared},
                       {"tensor-parallel-group", nccl}}),
              HasSubstr("--tensor-parallel-group: nccl takes one worker a GPU"));
}

TEST(CheckConfigTest, NoGpuIsDeterministic) {
  const SettingText on{"true", "--deterministic"};
  EXPECT_TRUE(CheckConfig(Resolve({{"deterministic", on}}, {})).ok());
  EXPECT_THAT(
      CheckConfig(Resolve({{"deterministic", on}, {"device", {"cuda", "--device"}}}, {})).message(),
      HasSubstr("--deterministic: which kernel computes a row depends on the batch"));
}

TEST(DefaultsTest, ReplicasShareCoresAndCountThroughGpus) {
  const SettingText two{"2", "--replicas"}, three{"3", "--tensor-parallel-size"};
  const MachineFacts machine{.num_cores = 16, .num_physical_cores = 8};
  EXPECT_EQ(Resolve({}, machine).config.worker().replicas(), 1u);
  EXPECT_EQ(Resolve({{"replicas", two}}, machine).config.worker().cpu_threads(), 4u);
  EXPECT_EQ(Resolve({{"replicas", two}, {"tensor-parallel-size", three}}, machine)
                .config.worker()
                .cpu_threads(),
            1u);
  EXPECT_THAT(
      DevicesOf(
          {{"device", {"cuda", "--device"}}, {"replicas", two}, {"tensor-parallel-size", three}}),
      ElementsAre(0u, 1u, 2u, 3u, 4u, 5u));
}

TEST(CheckConfigTest, ReplicasHaveCoresOrGpusOfTheirOwn) {
  const SettingText cuda{"cuda", "--device"}, three{"3", "PAGODA_REPLICAS"};
  const auto on_cores = [&](int num_cores, SettingTexts flags) {
    const MachineFacts machine{.num_cores = num_cores};
    return std::string(CheckReplicas(machine, Resolve(std::move(flags), machine)).message());
  };
  EXPECT_EQ(on_cores(3, {{"replicas", three}}), "");
  EXPECT_EQ(on_cores(2, {{"replicas", three}}),
            "PAGODA_REPLICAS: 3 replicas on 2 cores would wait for each other; expected 1 to 2");
  EXPECT_EQ(on_cores(1, {{"replicas", three}, {"device", {"sim", "--device"}}}), "");
  const auto with_devices = [&](const char* devices) {
    return std::string(
        CheckConfig(
            Resolve({{"device", cuda}, {"replicas", three}, {"devices", {devices, "--devices"}}},
                    {}))
            .message());
  };
  EXPECT_EQ(with_devices("0,2,1"), "");
  EXPECT_EQ(with_devices("0,2"),
            "--devices: expected a GPU for each of the 3 replicas of 1 workers of "
            "tensor-parallel-size, there are 2");
  EXPECT_EQ(with_devices("0,1,0"),
            "--devices: GPU 0 is named for replicas 0 and 2; expected GPUs of its own for each "
            "replica");
  SettingSources none;
  none.flags = {{"replicas", {"0", "--replicas"}}};
  EXPECT_THAT(std::string(MergeSettings(none).status().message()), HasSubstr("--replicas"));
}

TEST(CheckConfigTest, RefusesWhatCannotGoTogether) {
  const MachineFacts machine{.num_cores = 2, .available_memory_bytes = kGiB};
  EXPECT_TRUE(CheckConfig(Resolve({}, machine)).ok());
  EXPECT_TRUE(CheckConfig(Resolve({{"http-address", {"none", "--http-address"}},
                                   {"metrics-address", {"none", "--metrics-address"}}},
                                  machine))
                  .ok());
  EXPECT_THAT(
      std::string(
          CheckConfig(Resolve({{"served-model-name", {"a,b,a", "--served-model-name"}}}, machine))
              .message()),
      HasSubstr("--served-model-name: a is given twice"));
  EXPECT_THAT(
      std::string(
          CheckConfig(Resolve({{"grpc-address", {"", "PAGODA_GRPC_ADDRESS"}}}, machine)).message()),
      HasSubstr("PAGODA_GRPC_ADDRESS: expected HOST:PORT"));
  EXPECT_THAT(
      std::string(
          CheckConfig(Resolve({{"grpc-address", {"127.0.0.1:8002", "--grpc-address"}}}, machine))
              .message()),
      HasSubstr("both 127.0.0.1:8002"));
  EXPECT_TRUE(CheckConfig(Resolve({{"grpc-address", {"127.0.0.1:0", "--grpc-address"}},
                                   {"metrics-address", {"127.0.0.1:0", "--metrics-address"}}},
                                  machine))
                  .ok());
}

}  // namespace
}  // namespace pagoda::daemon
