// Ranks as threads of this process, so that ThreadSanitizer sees all of them, and as processes.
#include "parallel/shm_group.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "gtest/gtest.h"
#include "parallel/unique_fd.h"

namespace pagoda::parallel {
namespace {

class Ranks {
 public:
  explicit Ranks(int num_ranks) : groups_(MakeThreadGroups(num_ranks).value()) {}
  // body(group) on a thread for each rank.
  void Run(const std::function<void(ProcessGroup&)>& body) {
    std::vector<std::thread> threads;
    for (const auto& group : groups_) threads.emplace_back([&] { body(*group); });
    for (std::thread& thread : threads) thread.join();
  }
  ProcessGroup& group(int rank) { return *groups_[static_cast<size_t>(rank)]; }
  int num_ranks() const { return static_cast<int>(groups_.size()); }

 private:
  const std::vector<std::unique_ptr<ProcessGroup>> groups_;
};

// None, one, odd ones, about a piece of 128 KiB, several pieces.
constexpr int64_t kCounts[] = {0, 1, 2, 3, 7, 255, 256, 257, 1000, 32767, 32768, 32769, 100'003};

float ValueOf(int rank, int64_t i) {
  std::minstd_rand random(static_cast<uint32_t>(rank * 7919 + i + 1));
  return static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 64.0f;
}

template <typename T>
void TestAllReduce(DType dtype,
                   const std::function<float(T)>& to_float,
                   const std::function<T(float)>& from_float) {
  for (const int num_ranks : {1, 2, 3, 4, 8}) {
    Ranks ranks(num_ranks);
    for (const int64_t count : kCounts) {
      std::vector<std::vector<T>> data(static_cast<size_t>(num_ranks));
      ranks.Run([&](ProcessGroup& group) {
        std::vector<T>& own = data[static_cast<size_t>(group.rank())];
        for (int64_t i = 0; i < count; ++i) own.push_back(from_float(ValueOf(group.rank(), i)));
        EXPECT_TRUE(group.AllReduceSum(own.data(), dtype, count).ok());
      });
      for (int64_t i = 0; i < count; ++i) {
        float sum = 0.0f;
        for (int rank = 0; rank < num_ranks; ++rank) {
          sum += to_float(from_float(ValueOf(rank, i)));
        }
        // In order of rank: exactly this.
        const float expected = to_float(from_float(sum));
        for (int rank = 0; rank < num_ranks; ++rank) {
          ASSERT_EQ(to_float(data[static_cast<size_t>(rank)][static_cast<size_t>(i)]), expected)
              << num_ranks << " ranks, " << count << " values, rank " << rank << ", " << i;
        }
      }
    }
  }
}

TEST(ShmGroupTest, AllReduceOfFloat32) {
  TestAllReduce<float>(
      DType::kFloat32, [](float v) { return v; }, [](float v) { return v; });
}

TEST(ShmGroupTest, AllReduceOfBFloat16) {
  TestAllReduce<BFloat16>(
      DType::kBFloat16,
      [](BFloat16 v) { return v.ToFloat(); },
      [](float v) { return BFloat16::FromFloat(v); });
}

TEST(ShmGroupTest, AllReduceOfFloat16) {
  TestAllReduce<Float16>(
      DType::kFloat16,
      [](Float16 v) { return v.ToFloat(); },
      [](float v) { return Float16::FromFloat(v); });
}

TEST(ShmGroupTest, SumsThatDependOnTheOrderAreTheSameEverywhere) {
  Ranks ranks(3);
  std::vector<float> results(3);
  const float values[] = {1e8f, -1e8f, 1.0f};
  ranks.Run([&](ProcessGroup& group) {
    float value = values[group.rank()];
    EXPECT_TRUE(group.AllReduceSum(&value, DType::kFloat32, 1).ok());
    results[static_cast<size_t>(group.rank())] = value;
  });
  EXPECT_EQ(results, std::vector<float>(3, 1.0f));
}

TEST(ShmGroupTest, NotANumberIsSeenByAll) {
  Ranks ranks(2);
  ranks.Run([](ProcessGroup& group) {
    std::vector<float> data(5, 1.0f);
    if (group.rank() == 1) data[3] = NAN;
    EXPECT_TRUE(group.AllReduceSum(data.data(), DType::kFloat32, 5).ok());
    EXPECT_TRUE(std::isnan(data[3]));
    EXPECT_EQ(data[2], 2.0f);
  });
}

TEST(ShmGroupTest, AllGather) {
  for (const int num_ranks : {1, 2, 3, 8}) {
    Ranks ranks(num_ranks);
    for (const int64_t count : kCounts) {
      const size_t num_bytes = static_cast<size_t>(count);
      ranks.Run([&](ProcessGroup& group) {
        const std::string own(num_bytes, static_cast<char>('a' + group.rank()));
        std::string all(num_bytes * static_cast<size_t>(num_ranks), '?');
        EXPECT_TRUE(group.AllGather(own.data(), all.data(), num_bytes).ok());
        for (int rank = 0; rank < num_ranks; ++rank) {
          const std::string part = all.substr(static_cast<size_t>(rank) * num_bytes, num_bytes);
          EXPECT_EQ(part, std::string(num_bytes, static_cast<char>('a' + rank)));
        }
      });
    }
  }
}

TEST(ShmGroupTest, Broadcast) {
  Ranks ranks(4);
  for (const int64_t count : kCounts) {
    for (int root = 0; root < 4; ++root) {
      const size_t num_bytes = static_cast<size_t>(count);
      ranks.Run([&](ProcessGroup& group) {
        std::string data(num_bytes, static_cast<char>('a' + group.rank()));
        EXPECT_TRUE(group.Broadcast(data.data(), num_bytes, root).ok());
        EXPECT_EQ(data, std::string(num_bytes, static_cast<char>('a' + root)));
      });
    }
  }
}

// Many calls of all kinds without a pause: buffers are used again at the earliest.
TEST(ShmGroupTest, AnyCallsInAnyOrder) {
  for (const int num_ranks : {2, 4}) {
    Ranks ranks(num_ranks);
    ranks.Run([&](ProcessGroup& group) {
      std::minstd_rand random(5);  // the same on every rank
      for (int call = 0; call < 3000; ++call) {
        const int64_t count = static_cast<int64_t>(random() % (call % 100 == 0 ? 70'000 : 300));
        std::vector<float> data;
        for (int64_t i = 0; i < count; ++i) data.push_back(static_cast<float>(group.rank() + call));
        const uint32_t kind = random() % 3;
        float expected = 0.0f;
        absl::Status status;
        if (kind == 0) {
          status = group.AllReduceSum(data.data(), DType::kFloat32, count);
          for (int rank = 0; rank < num_ranks; ++rank) expected += static_cast<float>(rank + call);
        } else if (kind == 1) {
          const int root = static_cast<int>(random() % static_cast<uint32_t>(num_ranks));
          status = group.Broadcast(data.data(), data.size() * sizeof(float), root);
          expected = static_cast<float>(root + call);
        } else {
          std::vector<float> all(data.size() * static_cast<size_t>(num_ranks));
          status = group.AllGather(data.data(), all.data(), data.size() * sizeof(float));
          data.assign(all.end() - count, all.end());
          expected = static_cast<float>(num_ranks - 1 + call);
        }
        ASSERT_TRUE(status.ok()) << status;
        for (const float value : data) ASSERT_EQ(value, expected) << call;
      }
    });
  }
}

TEST(ShmGroupTest, ALateRankIsWaitedForAsleep) {
  Ranks ranks(2);
  ranks.Run([](ProcessGroup& group) {
    float value = 1.0f;
    if (group.rank() == 1) {
      usleep(300'000);
      EXPECT_TRUE(group.AllReduceSum(&value, DType::kFloat32, 1).ok());
      return;
    }
    timespec before, after;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    EXPECT_TRUE(group.AllReduceSum(&value, DType::kFloat32, 1).ok());
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    const int64_t cpu_ns =
        (after.tv_sec - before.tv_sec) * 1'000'000'000 + after.tv_nsec - before.tv_nsec;
    EXPECT_LT(cpu_ns, 20'000'000);
    EXPECT_EQ(value, 2.0f);
  });
}

TEST(ShmGroupTest, AbortEndsEveryWaitOfEveryRank) {
  Ranks ranks(3);
  ranks.Run([](ProcessGroup& group) {
    if (group.rank() == 2) {
      usleep(50'000);
      group.Abort();
      return;
    }
    float value = 1.0f;
    EXPECT_TRUE(absl::IsAborted(group.AllReduceSum(&value, DType::kFloat32, 1)));
    EXPECT_TRUE(absl::IsAborted(group.Broadcast(&value, 4, 0)));
    float all[3];
    EXPECT_TRUE(absl::IsAborted(group.AllGather(&value, all, 4)));
  });
}

TEST(ShmGroupTest, RanksMayBeProcesses) {
  const auto memory = MakeShmGroupMemory(2);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto run = [&memory](int rank) {
    const auto group = MakeShmGroup(*memory, rank, 2);
    bool is_right = group.ok();
    for (int call = 0; is_right && call < 1000; ++call) {
      std::vector<float> data(static_cast<size_t>(1 + call % 50), static_cast<float>(rank + call));
      is_right = (*group)->AllReduceSum(data.data(), DType::kFloat32, 1 + call % 50).ok() &&
                 data.back() == static_cast<float>(2 * call + 1);
    }
    return is_right;
  };
  const pid_t pid = fork();
  if (pid == 0) _exit(run(1) ? 0 : 1);
  EXPECT_TRUE(run(0));
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(ShmGroupTest, TheRankThatHoldsUpOthersIsFound) {
  constexpr int kNumRanks = 3;
  const auto memory = MakeShmGroupMemory(kNumRanks);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(FindLastRank(*memory, kNumRanks), absl::nullopt);
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    groups.push_back(MakeShmGroup(*memory, rank, kNumRanks).value());
  }
  std::vector<std::thread> threads;
  const auto sum_on = [&](int rank) {
    threads.emplace_back([&group = *groups[static_cast<size_t>(rank)]] {
      float value = 1.0f;
      EXPECT_TRUE(group.AllReduceSum(&value, DType::kFloat32, 1).ok());
    });
  };
  const auto found = [&] { return FindLastRank(*memory, kNumRanks); };
  sum_on(0);
  // Two are behind: neither can be told from the other.
  usleep(10'000);
  EXPECT_EQ(found(), absl::nullopt);
  sum_on(2);
  while (found() == absl::nullopt) usleep(1000);
  EXPECT_EQ(found(), 1);
  sum_on(1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found(), absl::nullopt);
  // Ranks that meet elsewhere tell how far they are.
  groups[0]->NoteProgress();
  EXPECT_EQ(found(), absl::nullopt);
  groups[1]->NoteProgress();
  EXPECT_EQ(found(), 2);
  groups[2]->NoteProgress();
  EXPECT_EQ(found(), absl::nullopt);
  EXPECT_EQ(FindLastRank(UniqueFd(), kNumRanks), absl::nullopt);
}

TEST(ShmGroupTest, RefusesWhatCannotWork) {
  EXPECT_TRUE(absl::IsInvalidArgument(MakeShmGroupMemory(0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeShmGroupMemory(9).status()));
  const auto memory = MakeShmGroupMemory(2);
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(MakeShmGroup(*memory, 0, 3).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeShmGroup(*memory, 2, 2).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeShmGroup(UniqueFd(), 0, 2).status()));
  const auto group = MakeShmGroup(*memory, 0, 2);
  ASSERT_TRUE(group.ok());
  int32_t value = 1;
  EXPECT_TRUE(absl::IsInvalidArgument((*group)->AllReduceSum(&value, DType::kInt32, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument((*group)->Broadcast(&value, 4, 2)));
}

}  // namespace
}  // namespace pagoda::parallel
