#include "daemon/server/replicas/replica_config.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using internal::v1::ServerConfig;
using ::testing::ElementsAre;

ServerConfig Config(const char* device, uint32_t replicas) {
  ServerConfig config;
  config.mutable_worker()->set_device(device);
  config.mutable_worker()->set_replicas(replicas);
  config.mutable_worker()->set_tensor_parallel_size(2);
  config.mutable_engine()->set_kv_cache_memory_bytes(900);
  config.mutable_engine()->set_max_waiting_requests(10);
  config.mutable_engine()->set_max_waiting_tokens(100);
  return config;
}

TEST(ReplicaConfigTest, OneHasEverything) {
  for (const uint32_t replicas : {0u, 1u}) {
    const ServerConfig config = Config("cpu", replicas);
    EXPECT_EQ(NumReplicas(config), 1u);
    EXPECT_EQ(ConfigOfReplica(config, 0).SerializeAsString(), config.SerializeAsString());
  }
}

TEST(ReplicaConfigTest, ACpusMemoryIsShared) {
  const ServerConfig own = ConfigOfReplica(Config("cpu", 3), 1);
  EXPECT_EQ(own.engine().kv_cache_memory_bytes(), 300u);
  EXPECT_EQ(own.engine().max_waiting_requests(), 4u);
  EXPECT_EQ(own.engine().max_waiting_tokens(), 34u);
  internal::v1::WorkerHello hello;
  hello.set_total_memory_bytes(3000);
  hello.set_free_memory_bytes(600);
  const internal::v1::WorkerHello share = ShareOfReplica(own, hello);
  EXPECT_EQ(share.total_memory_bytes(), 1000u);
  EXPECT_EQ(share.free_memory_bytes(), 200u);
}

TEST(ReplicaConfigTest, EachHasItsGpus) {
  ServerConfig config = Config("cuda", 2);
  for (const uint32_t device : {4, 5, 7, 6}) config.mutable_worker()->add_devices(device);
  EXPECT_THAT(ConfigOfReplica(config, 0).worker().devices(), ElementsAre(4, 5));
  const ServerConfig second = ConfigOfReplica(config, 1);
  EXPECT_THAT(second.worker().devices(), ElementsAre(7, 6));
  EXPECT_EQ(second.engine().kv_cache_memory_bytes(), 900u);
  internal::v1::WorkerHello hello;
  hello.set_free_memory_bytes(600);
  EXPECT_EQ(ShareOfReplica(second, hello).free_memory_bytes(), 600u);
}

}  // namespace
}  // namespace pagoda::daemon
