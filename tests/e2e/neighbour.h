#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e {

// A client beside a test that asks for the same stream again and again: each one has to be as the
// first.
class Neighbour {
 public:
  explicit Neighbour(TestDaemon& daemon)
      : stub_(daemon.NewStub()), first_(StreamGenerate(*stub_, Request())) {
    EXPECT_TRUE(first_.status.ok()) << first_.status.error_message();
    thread_ = std::thread([this] {
      for (; !is_over_; ++num_streams_) {
        const CallResult result = StreamGenerate(*stub_, Request(), absl::Seconds(20));
        ASSERT_TRUE(result.status.ok()) << result.status.error_message();
        ASSERT_TRUE(result.first().SameOutput(first_.first()));
        absl::SleepFor(absl::Milliseconds(5));  // the cores are for the test
      }
    });
  }
  ~Neighbour() { Stop(); }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  // After it at least one more stream has gone well.
  void Stop() {
    if (!thread_.joinable()) return;
    const int num_before = num_streams_;
    EXPECT_TRUE(
        TestDaemon::Eventually(absl::Seconds(30), [&] { return num_streams_ > num_before + 1; }));
    is_over_ = true;
    thread_.join();
  }

 private:
  static v1::GenerateRequest Request() {
    v1::GenerateRequest request = TextRequest("Once upon a time", 50);
    request.mutable_sampling()->set_seed(7);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }

  const std::unique_ptr<v1::InferenceService::Stub> stub_;
  const CallResult first_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> num_streams_{0};
  std::thread thread_;
};

}  // namespace pagoda::e2e
