// One call after another of the operating system or the allocator fails, once or for ever, while
// the daemon starts and serves a fixed script of requests: each request ends, with its output
// or an error, and the daemon serves on or ends with an exit code of its own, never by a signal and
// never late.

#include <csignal>
#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::faulty_calls_test {
namespace {

using grpc::StatusCode;

constexpr int kNumRequests = 60, kNumRequestsLong = 200;
// Of the largest request, many times over.
constexpr absl::Duration kRequestLimit = absl::Seconds(30);

// See tests/fakes/faulty_calls.cc.
struct Fault {
  const char* role;
  const char* kind;
  int first;
  const char* how;
};

std::string NameOf(const Fault& fault) {
  return absl::StrCat(fault.role, " ", fault.kind, " ", fault.first, " ", fault.how);
}

class FaultyEnvironment {
 public:
  explicit FaultyEnvironment(const Fault& fault) {
    setenv("PAGODA_FAULTY_CALLS", NameOf(fault).c_str(), 1);
    setenv("LD_PRELOAD", PAGODA_FAULTY_CALLS_LIBRARY, 1);
  }
  ~FaultyEnvironment() {
    unsetenv("LD_PRELOAD");
    unsetenv("PAGODA_FAULTY_CALLS");
  }
};

class FaultyCalls : public ::testing::Test {
 protected:
  bool HasEnded() { return daemon_->WaitForExit(absl::ZeroDuration()).ok(); }

  // Where Abseil's mutexes get no memory of the system's, or gRPC no thread or descriptor, they say
  // so and abort: nobody is asked.
  bool IsLibrarysEnd(int exit_code) const {
    const std::string log = daemon_->Log();
    return exit_code == 128 + SIGABRT &&
           (absl::StrContains(log, "RAW: mmap error: ") ||
            absl::StrContains(log, "RAW: Attempting to fetch value ") ||
            absl::StrContains(log, "gRPC: assertion failed: "));
  }

  // False: the daemon has ended.
  bool AwaitServing() {
    bool serves = false;
    EXPECT_TRUE(TestDaemon::Eventually(
        absl::Seconds(60),
        [&] {
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
          context.set_wait_for_ready(true);
          v1::GetModelResponse model;
          serves = daemon_->stub().GetModel(&context, v1::GetModelRequest(), &model).ok();
          return serves || HasEnded();
        }))
        << "neither serves nor ends:\n"
        << daemon_->Log();
    return serves;
  }

  grpc::Status CallOnce(int i) {
    v1::GenerateRequest request = TextRequest("Once upon a time", 1 + static_cast<uint32_t>(i) % 7);
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(i));
    if (i % 5 == 0) request.mutable_output()->set_n(2);
    if (i % 11 == 0) request.mutable_output()->set_logprobs(3);
    if (i % 3 != 0) {
      OpenStream stream(daemon_->stub(), request, kRequestLimit, /*waits_for_daemon=*/false);
      return stream.Finish();
    }
    return Generate(daemon_->stub(), request, kRequestLimit, /*waits_for_daemon=*/false).status;
  }

  // The number of requests that were answered.
  int Run(const Fault& fault, int num_requests) {
    int num_ok = 0;
    RunInto(fault, num_requests, &num_ok);
    return num_ok;
  }

  void RunInto(const Fault& fault, int num_requests, int* num_ok) {
    SCOPED_TRACE(NameOf(fault));
    {
      const FaultyEnvironment environment(fault);
      auto daemon = TestDaemon::Start(
          {.flags = {"--max-worker-restarts=3"}, .wait_until_serving = false, .with_http = true});
      ASSERT_TRUE(daemon.ok()) << daemon.status();
      daemon_ = *std::move(daemon);
    }
    if (AwaitServing()) {
      for (int i = 0; i < num_requests && !HasEnded(); ++i) {
        const grpc::Status status = CallOnce(i);
        ASSERT_NE(status.error_code(), StatusCode::DEADLINE_EXCEEDED) << "request " << i << "\n"
                                                                      << daemon_->Log();
        *num_ok += status.ok() ? 1 : 0;
        if (i % 20 == 0) daemon_->ScrapeMetrics().status().IgnoreError();
      }
      daemon_->Signal(SIGTERM);
    }
    const absl::StatusOr<int> exit_code = daemon_->WaitForExit(absl::Seconds(60));
    ASSERT_TRUE(exit_code.ok()) << "it does not end:\n" << daemon_->Log();
    EXPECT_TRUE(*exit_code < 128 || IsLibrarysEnd(*exit_code)) << daemon_->Log();
    std::printf("%-24s %3d of %d requests, exit code %d\n",
                NameOf(fault).c_str(),
                *num_ok,
                num_requests,
                *exit_code);
  }

  std::unique_ptr<TestDaemon> daemon_;
};

TEST_F(FaultyCalls, EveryRequestEndsAndTheDaemonServesOrEnds) {
  for (const Fault& fault : {Fault{"serve", "new", 20'000, "once"},
                             Fault{"worker", "new", 30'000, "ever"},
                             Fault{"serve", "receive", 100, "once"},
                             Fault{"serve", "send", 100, "ever"},
                             Fault{"serve", "accept", 1, "once"},
                             Fault{"serve", "read", 1, "ever"}}) {
    Run(fault, kNumRequests);
  }
}

// S14: nobody connects to anything, so it is no matter that nobody may.
TEST_F(FaultyCalls, S14WithoutAnyConnection) {
  constexpr int kFew = 5;
  for (const char* role : {"serve", "worker"})
    EXPECT_EQ(Run({role, "connect", 1, "ever"}, kFew), kFew);
}

class FaultyCallsLong : public FaultyCalls,
                        public ::testing::WithParamInterface<std::tuple<const char*, const char*>> {
};

TEST_P(FaultyCallsLong, EarlyAndLate) {
  const auto [role, kind] = GetParam();
  // A daemon that can never again send, write or start a thread stays where it is: nobody hears
  // from it, and it does not end by itself yet.
  const std::set<absl::string_view> mute = {"write", "send", "thread"};
  const bool ever = role != absl::string_view("serve") || mute.count(kind) == 0;
  for (const int first : {1, 2, 5, 10, 20, 50, 100, 1'000, 10'000, 100'000}) {
    Run({role, kind, first, "once"}, kNumRequestsLong);
    if (ever) Run({role, kind, first, "ever"}, kNumRequestsLong);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         FaultyCallsLong,
                         ::testing::Combine(::testing::Values("serve", "worker"),
                                            ::testing::Values("new",
                                                              "mmap",
                                                              "open",
                                                              "read",
                                                              "receive",
                                                              "write",
                                                              "send",
                                                              "socket",
                                                              "pipe",
                                                              "connect",
                                                              "accept",
                                                              "epoll",
                                                              "fork",
                                                              "thread")),
                         [](const auto& info) {
                           return absl::StrCat(
                               std::get<0>(info.param), "_", std::get<1>(info.param));
                         });

}  // namespace
}  // namespace pagoda::e2e::faulty_calls_test
