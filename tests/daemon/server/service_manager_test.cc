#include "daemon/server/service_manager.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/server/pulse_pipe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::daemon {
namespace {

// The manager's end: a datagram socket, by path or by abstract name.
class ManagerSocket {
 public:
  explicit ManagerSocket(const std::string& name) : fd_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0) << name;
  }
  ~ManagerSocket() { close(fd_); }

  // The next datagram; empty when none comes within `patience`.
  std::string Next(absl::Duration patience = absl::Seconds(10)) {
    const timeval timeout = absl::ToTimeval(patience);
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    char buffer[4096];
    const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
    return size < 0 ? "" : std::string(buffer, static_cast<size_t>(size));
  }

 private:
  const int fd_;
};

TEST(ServiceManagerTest, TellsWhereTheDaemonStands) {
  const fixtures::TemporaryDir dir;
  for (const std::string& name :
       {dir.path() + "/notify", absl::StrCat("@pagoda-test-", getpid())}) {
    ManagerSocket socket(name);
    ServiceManager manager({.notify_socket = name});
    manager.NoteLoading("loading: read\n1 GiB", absl::Seconds(90));
    EXPECT_EQ(socket.Next(), "STATUS=loading: read 1 GiB\nEXTEND_TIMEOUT_USEC=90000000");
    manager.NoteReady("serving");
    EXPECT_EQ(socket.Next(), "READY=1\nSTATUS=serving");
    manager.NoteStopping("draining", absl::Milliseconds(1500));
    EXPECT_EQ(socket.Next(), "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=1500000");
    manager.NoteAlive();
    EXPECT_EQ(socket.Next(), "WATCHDOG=1");
  }
}

TEST(ServiceManagerTest, NobodyOrABadNameHurtsNothing) {
  for (const std::string& name : {std::string(),
                                  std::string("/nonexistent/notify"),
                                  "/" + std::string(200, 'x'),
                                  std::string("@nobody")}) {
    ServiceManager manager({.notify_socket = name});
    manager.NoteReady("serving");
    manager.NoteAlive();
  }
}

TEST(ServiceManagerTest, TakesTheEnvironmentOnce) {
  setenv("NOTIFY_SOCKET", "@somewhere", 1);
  setenv("WATCHDOG_USEC", "30000000", 1);
  setenv("WATCHDOG_PID", absl::StrCat(getpid()).c_str(), 1);
  ServiceManager::Options options = ServiceManager::Options::TakeFromEnvironment();
  EXPECT_EQ(options.notify_socket, "@somewhere");
  EXPECT_EQ(options.watchdog_interval, absl::Seconds(30));
  options = ServiceManager::Options::TakeFromEnvironment();
  EXPECT_EQ(options.notify_socket, "");
  EXPECT_EQ(options.watchdog_interval, absl::InfiniteDuration());
  for (const char* interval : {"0", "-5", "soon", ""}) {
    setenv("WATCHDOG_USEC", interval, 1);
    options = ServiceManager::Options::TakeFromEnvironment();
    EXPECT_EQ(options.watchdog_interval, absl::InfiniteDuration()) << interval;
  }
  setenv("WATCHDOG_USEC", "30000000", 1);
  setenv("WATCHDOG_PID", "1", 1);  // somebody else's
  options = ServiceManager::Options::TakeFromEnvironment();
  EXPECT_EQ(options.watchdog_interval, absl::InfiniteDuration());
}

TEST(WatchdogTest, BeatsWhileThePulseDoesAndNotLonger) {
  const std::string name = absl::StrCat("@pagoda-watchdog-", getpid());
  ManagerSocket socket(name);
  ServiceManager manager({.notify_socket = name, .watchdog_interval = absl::Milliseconds(90)});
  std::atomic<bool> lives{true};
  std::atomic<uint64_t> rounds{0};
  Watchdog watchdog(
      &manager, [&] { return rounds.load(); }, [&] { rounds += lives.load() ? 1 : 0; });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(socket.Next(), "WATCHDOG=1");
  lives.store(false);
  // One beat may have been on its way.
  while (!socket.Next(absl::Milliseconds(200)).empty()) {
  }
  EXPECT_EQ(socket.Next(absl::Milliseconds(300)), "");
  lives.store(true);
  EXPECT_EQ(socket.Next(), "WATCHDOG=1");
}

// Never has a result.
class IdlePipe : public parallel::StepPipe {
 public:
  absl::Status Submit(const internal::v1::StepPlan&) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Poll(internal::v1::StepResult*) override { return false; }
  void Wait(int, int64_t) override {}
  parallel::WorkerFailure failure() const override { return {}; }
  void Restart(int64_t) override {}
  bool is_ready() const override { return true; }
  int64_t late_at_ns() const override { return INT64_MAX; }
};

TEST(PulsePipeTest, CountsPolls) {
  IdlePipe idle;
  PulsePipe pipe(&idle);
  internal::v1::StepResult result;
  for (uint64_t round = 1; round <= 3; ++round) {
    EXPECT_FALSE(pipe.Poll(&result).value());
    pipe.Wait(-1, 0);
    EXPECT_EQ(pipe.num_rounds(), round);
  }
}

TEST(WatchdogTest, NoIntervalNoBeat) {
  const std::string name = absl::StrCat("@pagoda-no-watchdog-", getpid());
  ManagerSocket socket(name);
  ServiceManager manager({.notify_socket = name});
  const Watchdog watchdog(
      &manager, [] { return uint64_t{0}; }, [] { ADD_FAILURE(); });
  EXPECT_EQ(socket.Next(absl::Milliseconds(100)), "");
}

}  // namespace
}  // namespace pagoda::daemon
