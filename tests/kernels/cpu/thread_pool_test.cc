#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <numeric>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "gtest/gtest.h"

namespace pagoda::kernels::cpu {
namespace {

TEST(ThreadPoolTest, RunsEachIndexOncePerCall) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    std::vector<std::atomic<int>> calls(num_threads);
    for (int i = 0; i < 2000; ++i)
      pool.Run([&](int thread_idx) { calls[thread_idx].fetch_add(1); });
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count.load(), 2000);
  }
}

TEST(ThreadPoolTest, WhatThreadsWroteIsSeenAfterRunAndByTheNextRun) {
  ThreadPool pool(4);
  std::vector<int64_t> values(4, 0);  // no atomics: Run orders them
  for (int i = 0; i < 3000; ++i) {
    pool.Run([&](int thread_idx) { values[thread_idx] += i; });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}),
              int64_t{4} * i * (i + 1) / 2);
    pool.Run([&](int thread_idx) { values[(thread_idx + 1) % 4] += 0; });
  }
}

TEST(ThreadPoolTest, WakesAfterSleepingThreads) {
  ThreadPool pool(3);
  for (int i = 0; i < 5; ++i) {
    std::atomic<int> calls{0};
    pool.Run([&](int) { calls.fetch_add(1); });
    EXPECT_EQ(calls.load(), 3);
    usleep(2000);  // longer than threads spin: the next call finds them asleep
  }
}

double ProcessorSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

TEST(ThreadPoolTest, IdlePoolCostsNothing) {
  ThreadPool pool(4);
  pool.Run([](int) {});
  usleep(20'000);
  const double before = ProcessorSeconds();
  usleep(300'000);
  EXPECT_LT(ProcessorSeconds() - before, 0.3 * 0.01);
}

TEST(ThreadPoolTest, StaticPartsCoverEverythingOnce) {
  for (const int64_t total : {0, 1, 7, 100, 4097}) {
    for (const int num_threads : {1, 2, 3, 16}) {
      int64_t next = 0;
      for (int i = 0; i < num_threads; ++i) {
        const auto [begin, end] = StaticPart(total, i, num_threads);
        EXPECT_EQ(begin, next);
        EXPECT_LE(end - begin, total / num_threads + 1);
        next = end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

}  // namespace
}  // namespace pagoda::kernels::cpu
