#include "parallel/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/fake_executor.h"

namespace pagoda::parallel {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kLongNs = 60'000'000'000;

std::vector<std::string> Shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

// What a shell started as a worker writes to its channel.
std::string OutputOf(const std::string& script, int group_memory = -1) {
  auto process = WorkerProcess::Start(Shell("exec >&3; " + script), group_memory);
  EXPECT_TRUE(process.ok()) << process.status();
  const UniqueFd channel = (*process)->TakeChannel();
  std::string output;
  char buffer[4096];
  ssize_t n;
  while ((n = read(channel.get(), buffer, sizeof buffer)) > 0) output.append(buffer, n);
  return output;
}

TEST(WorkerProcessTest, TellsHowItEnded) {
  auto process = WorkerProcess::Start(Shell("exit 3"));
  ASSERT_TRUE(process.ok());
  EXPECT_EQ((*process)->WaitForExit(kLongNs), "exited with status 3");
  EXPECT_EQ((*process)->WaitForExit(0), "exited with status 3");
  process = WorkerProcess::Start(Shell("kill -SEGV $$"));
  ASSERT_TRUE(process.ok());
  EXPECT_THAT((*process)->WaitForExit(kLongNs).value(), StartsWith("was killed by signal 11"));
}

TEST(WorkerProcessTest, ACommandThatCannotRunIsNamed) {
  const auto process = WorkerProcess::Start({"/nowhere/pagoda", "worker"});
  EXPECT_EQ(process.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(process.status().message()),
              HasSubstr("/nowhere/pagoda: No such file or directory"));
}

TEST(WorkerProcessTest, InheritsTheChannelAndNothingElse) {
  // Without O_CLOEXEC, as a careless library would leave it.
  const UniqueFd stray(open("/dev/null", O_RDONLY));
  ASSERT_GE(stray.get(), 3);
  // The last is the directory that ls reads.
  EXPECT_EQ(OutputOf("exec ls /proc/self/fd"), "0\n1\n2\n3\n4\n");
}

TEST(WorkerProcessTest, InheritsTheMemoryOfItsGroup) {
  const UniqueFd stray(open("/dev/null", O_RDONLY));
  const UniqueFd file(open("/etc/passwd", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  EXPECT_EQ(OutputOf("echo $0 $1; ls /proc/self/fd; readlink /proc/self/fd/4", file.get()),
            "--channel-fd=3 --group-fd=4\n0\n1\n2\n3\n4\n5\n/etc/passwd\n");
}

TEST(WorkerProcessTest, KeepsTheDescriptorsOfTheDaemon) {
  const std::string before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    auto process = WorkerProcess::Start(Shell("read line <&3"));
    ASSERT_TRUE(process.ok());
    EXPECT_FALSE((*process)->WaitForExit(0).has_value());
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(WorkerProcessTest, IgnoresTheSignalsOfATerminal) {
  // SigIgn of /proc/self/status: bit n - 1 is signal n; blocked must be none.
  const std::string status = OutputOf("exec grep -E '^Sig(Ign|Blk)' /proc/self/status");
  EXPECT_THAT(status, HasSubstr("SigBlk:\t0000000000000000"));
  const size_t at = status.find("SigIgn:\t");
  ASSERT_NE(at, std::string::npos);
  const uint64_t ignored = std::stoull(status.substr(at + 8, 16), nullptr, 16);
  for (const int number : {SIGHUP, SIGINT, SIGTERM}) {
    EXPECT_TRUE(ignored >> (number - 1) & 1) << number;
  }
}

TEST(WorkerProcessTest, PidfdIsReadableAfterTheEnd) {
  auto process = WorkerProcess::Start(Shell("read line <&3"));
  ASSERT_TRUE(process.ok());
  pollfd entry{.fd = (*process)->pidfd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  (*process)->Kill();
  EXPECT_EQ(poll(&entry, 1, 60'000), 1);
  EXPECT_THAT((*process)->WaitForExit(0).value(), StartsWith("was killed by signal 9"));
}

// A process starts a worker and is then killed in a way that it cannot handle.
TEST(WorkerProcessTest, DiesWithTheDaemon) {
  int pids[2];
  ASSERT_EQ(pipe2(pids, O_CLOEXEC), 0);
  const pid_t daemon = fork();
  ASSERT_GE(daemon, 0);
  if (daemon == 0) {
    // Stops, so that it cannot see the end of its channel.
    auto process = WorkerProcess::Start(Shell("echo $$ >&3; kill -STOP $$"));
    if (!process.ok()) _exit(1);
    const UniqueFd channel = (*process)->TakeChannel();
    char text[16] = {};
    if (read(channel.get(), text, sizeof text) <= 0) _exit(1);
    const pid_t pid = (*process)->pid();
    if (write(pids[1], &pid, sizeof pid) != sizeof pid) _exit(1);
    while (true) pause();
  }
  pid_t worker = 0;
  ASSERT_EQ(read(pids[0], &worker, sizeof worker), static_cast<ssize_t>(sizeof worker));
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, worker, 0)));
  ASSERT_TRUE(pidfd.valid());
  kill(daemon, SIGKILL);
  ASSERT_EQ(waitpid(daemon, nullptr, 0), daemon);
  pollfd entry{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&entry, 1, 60'000), 1);
  for (const int fd : {pids[0], pids[1]}) close(fd);
}

}  // namespace
}  // namespace pagoda::parallel
