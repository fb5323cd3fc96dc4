// kill -9 of the daemon while it loads, serves or drains: its workers end with it, nothing is left
// in shared memory, and the next start at the same place works. The moments come from a seed.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <signal.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/rank_flags.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::daemon_kills_test {
namespace {

namespace fs = std::filesystem;

enum class Phase { kLoading, kServing, kDraining };
constexpr const char* kPhaseNames[] = {"loading", "serving", "draining"};

// Goal G4 is 2 s; a test allows ten times that.
constexpr absl::Duration kLimit = absl::Seconds(20);
constexpr int kNumStreams = 6;
constexpr uint32_t kStreamTokens = 400;

v1::GenerateRequest LongRequest(int i) {
  v1::GenerateRequest request = TextRequest("Once upon a time", kStreamTokens);
  request.mutable_stopping()->set_ignore_eos(true);
  if (i % 2 == 1) {
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(i));
  }
  return request;
}

// Streams that somebody reads to their end, whatever that is.
class Streams {
 public:
  explicit Streams(const TestDaemon& daemon) {
    for (int i = 0; i < kNumStreams; ++i) {
      threads_.emplace_back([this, i, stub = daemon.NewStub()] {
        OpenStream stream(*stub, LongRequest(i), absl::Seconds(120), /*waits_for_daemon=*/false);
        while (stream.Read()) num_messages_.fetch_add(1);
        stream.Finish();
      });
    }
  }
  ~Streams() {
    for (std::thread& thread : threads_) thread.join();
  }
  bool AwaitMessages(int64_t num) const {
    return TestDaemon::Eventually(absl::Seconds(60), [&] { return num_messages_.load() >= num; });
  }

 private:
  std::atomic<int64_t> num_messages_{0};
  std::vector<std::thread> threads_;
};

// Names in shared memory that ours, or NCCL's, would have.
std::set<std::string> SharedMemoryNames() {
  std::set<std::string> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev/shm", ignored)) {
    const std::string name = entry.path().filename();
    if (absl::StrContains(name, "pagoda") || absl::StartsWith(name, "nccl")) names.insert(name);
  }
  return names;
}

// Waits for every descendant of this process: how many there were; absent: some do not end.
absl::optional<int> AwaitNoDescendants() {
  int num_ended = 0;
  const absl::Time limit = absl::Now() + kLimit;
  while (absl::Now() < limit) {
    const pid_t ended = waitpid(-1, nullptr, WNOHANG);
    if (ended < 0 && errno == ECHILD) return num_ended;
    if (ended > 0) ++num_ended;
    if (ended == 0) absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::nullopt;
}

class DaemonKills : public ::testing::Test {
 protected:
  void SetUp() override {
    // What the daemon leaves behind becomes this process's child.
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    std::string pattern = fs::temp_directory_path() / "pagoda-kills-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
  }

  void Start(int num_ranks, bool wait_until_serving) {
    auto daemon = TestDaemon::Start(
        {.flags = RankFlags(num_ranks), .dir = dir_, .wait_until_serving = wait_until_serving});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }

  // Serves, and as it always did.
  void CheckServes() {
    v1::GenerateRequest request = LongRequest(1);
    request.mutable_stopping()->set_max_tokens(20);
    const CallResult result = StreamGenerate(daemon_->stub(), request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message() << "\n" << daemon_->Log();
    if (first_result_.sequences.empty()) first_result_ = result;
    if (IsExactDevice()) {
      EXPECT_TRUE(result.first().SameOutput(first_result_.first()));
    }
  }

  void Strike(Phase phase, int num_ranks) {
    SCOPED_TRACE(absl::StrCat(kPhaseNames[static_cast<size_t>(phase)], ", ranks ", num_ranks));
    const absl::Time start = absl::Now();
    ASSERT_NO_FATAL_FAILURE(Start(num_ranks, /*wait_until_serving=*/true));
    const absl::Duration load_time = absl::Now() - start;
    ASSERT_NO_FATAL_FAILURE(CheckServes());
    const double moment = std::uniform_real_distribution<double>(0, 1)(random_);
    if (phase == Phase::kLoading) {
      daemon_->Signal(SIGTERM);
      ASSERT_TRUE(daemon_->WaitForExit(absl::Seconds(60)).ok()) << daemon_->Log();
      ASSERT_NO_FATAL_FAILURE(Start(num_ranks, /*wait_until_serving=*/false));
      absl::SleepFor(load_time * moment);
      return Kill();
    }
    Streams streams(*daemon_);
    ASSERT_TRUE(streams.AwaitMessages(1 + static_cast<int64_t>(moment * 300))) << daemon_->Log();
    if (phase == Phase::kDraining) {
      daemon_->Signal(SIGTERM);
      absl::SleepFor(absl::Milliseconds(50) * moment);
    }
    Kill();
  }

  void Kill() {
    const absl::Time killed = absl::Now();
    daemon_->Signal(SIGKILL);
    // It may have ended by itself while it drained.
    EXPECT_THAT(daemon_->WaitForExit(kLimit).value_or(-1), ::testing::AnyOf(128 + SIGKILL, 0));
    const absl::optional<int> num_orphans = AwaitNoDescendants();
    EXPECT_TRUE(num_orphans.has_value()) << daemon_->Log();
    num_orphans_ += num_orphans.value_or(0);
    longest_ = std::max(longest_, absl::Now() - killed);
  }

  void StrikeOften(int num_kills) {
    const std::set<std::string> names_before = SharedMemoryNames();
    for (int i = 0; i < num_kills && !HasFailure(); ++i) {
      ASSERT_NO_FATAL_FAILURE(Strike(static_cast<Phase>(i % 3), 1 + i / 3 % 2));
    }
    EXPECT_EQ(SharedMemoryNames(), names_before);
    ASSERT_NO_FATAL_FAILURE(Start(1, /*wait_until_serving=*/true));
    ASSERT_NO_FATAL_FAILURE(CheckServes());
    // Else nothing was seen.
    EXPECT_GE(num_orphans_, num_kills / 3);
    std::printf("%d kills: all was over after %.1f ms at most (goal: 2,000)\n",
                num_kills,
                absl::ToDoubleMilliseconds(longest_));
  }

  fs::path dir_;
  std::mt19937_64 random_{7};
  std::unique_ptr<TestDaemon> daemon_;
  CallResult first_result_;
  int num_orphans_ = 0;
  absl::Duration longest_;
};

TEST_F(DaemonKills, NothingIsLeftAndTheNextStartWorks) { StrikeOften(6); }

// PAGODA_CHAOS_KILLS chooses how many.
using DaemonKillsLong = DaemonKills;
TEST_F(DaemonKillsLong, AtRandomMoments) {
  int num_kills = 200;
  if (const char* text = std::getenv("PAGODA_CHAOS_KILLS"); text != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &num_kills)) << text;
  }
  StrikeOften(num_kills);
}

}  // namespace
}  // namespace pagoda::e2e::daemon_kills_test
