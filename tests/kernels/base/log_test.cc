#include "kernels/base/log.h"

#include <csignal>
#include <fcntl.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// Descriptor 2 leads elsewhere while this lives.
class RedirectedStderr {
 public:
  explicit RedirectedStderr(int fd) : saved_(dup(STDERR_FILENO)) { dup2(fd, STDERR_FILENO); }
  ~RedirectedStderr() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
  }

 private:
  int saved_;
};

std::string ReadAvailable(int fd) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
  std::string text(1 << 20, '\0');
  const ssize_t size = read(fd, text.data(), text.size());
  text.resize(size < 0 ? 0 : static_cast<size_t>(size));
  return text;
}

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(fds), 0); }
  ~Pipe() {
    close(fds[0]);
    close(fds[1]);
  }
  int fds[2];
};

TEST(LogTest, EscapesControlCharactersAndKeepsUtf8) {
  Pipe pipe;
  {
    RedirectedStderr redirected(pipe.fds[1]);
    LogWarning("a\nb\tc\r\x1b[31m\x7f %s", "caf\u00e9");
  }
  const std::string line = ReadAvailable(pipe.fds[0]);
  EXPECT_THAT(line, HasSubstr("pagoda: warning: a\\nb\\tc\\r\\x1b[31m\\x7f caf\u00e9"));
  EXPECT_THAT(line, EndsWith("\n"));
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
}

TEST(LogTest, LevelsAreFiltered) {
  Pipe pipe;
  {
    RedirectedStderr redirected(pipe.fds[1]);
    EXPECT_TRUE(SetLogLevel("error"));
    LogWarning("quiet");
    LogError("loud");
    EXPECT_FALSE(SetLogLevel("shout"));
    EXPECT_TRUE(SetLogLevel("info"));
  }
  const std::string text = ReadAvailable(pipe.fds[0]);
  EXPECT_THAT(text, HasSubstr("pagoda: error: loud"));
  EXPECT_THAT(text, Not(HasSubstr("quiet")));
}

TEST(LogTest, LongLinesAreCutBetweenCharacters) {
  Pipe pipe;
  {
    RedirectedStderr redirected(pipe.fds[1]);
    std::string text;
    for (int i = 0; i < 5000; ++i) text += "\u00e9";
    LogLine(LogLevel::kInfo, text);
  }
  const std::string line = ReadAvailable(pipe.fds[0]);
  EXPECT_LE(line.size(), 4096u);
  EXPECT_THAT(line, EndsWith(" ...\n"));
  EXPECT_NE(static_cast<unsigned char>(line[line.size() - 6]), 0xc3) << "half a character";
}

// A reader that stopped reading: lines are dropped, and counted once it goes on.
TEST(LogTest, FullPipeDoesNotStall) {
  Pipe pipe;
  std::string text;
  {
    RedirectedStderr redirected(pipe.fds[1]);
    for (int i = 0; i < 3000; ++i) LogInfo("line %d of many that nobody reads", i);
    while (!ReadAvailable(pipe.fds[0]).empty()) {
    }
    LogInfo("after");
    text = ReadAvailable(pipe.fds[0]);
  }
  EXPECT_THAT(text, HasSubstr("log lines were dropped"));
  EXPECT_THAT(text, HasSubstr("pagoda: after"));
}

TEST(LogTest, FullSocketDoesNotStall) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  {
    RedirectedStderr redirected(fds[1]);
    for (int i = 0; i < 5000; ++i) LogInfo("line %d of many that nobody reads", i);
  }
  EXPECT_THAT(ReadAvailable(fds[0]), HasSubstr("line 0 of many"));
  close(fds[0]);
  {
    RedirectedStderr redirected(fds[1]);
    LogInfo("to nobody");
  }
  close(fds[1]);
}

// Handlers are the application's: with SIGPIPE's default, a write to a closed pipe would end the
// process.
TEST(LogTest, ClosedPipeDoesNotKill) {
  Pipe pipe;
  close(pipe.fds[0]);
  const auto old_handler = std::signal(SIGPIPE, SIG_DFL);
  {
    RedirectedStderr redirected(pipe.fds[1]);
    LogInfo("to nobody");
    LogInfo("to nobody");
  }
  std::signal(SIGPIPE, old_handler);
}

TEST(LogTest, ClosedDescriptorDoesNotKill) {
  const int saved = dup(STDERR_FILENO);
  close(STDERR_FILENO);
  LogInfo("to nobody");
  dup2(saved, STDERR_FILENO);
  close(saved);
}

TEST(LogTest, LinesOfThreadsStayWhole) {
  Pipe pipe;
  {
    RedirectedStderr redirected(pipe.fds[1]);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 50; ++i) LogInfo("<%s>", std::string(100, 'x'));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::string text = ReadAvailable(pipe.fds[0]);
  size_t lines = 0;
  for (size_t at = text.find("pagoda: <"); at != std::string::npos;
       at = text.find("pagoda: <", at + 1)) {
    EXPECT_EQ(text.substr(at + 8, 103), "<" + std::string(100, 'x') + ">\n");
    ++lines;
  }
  EXPECT_EQ(lines, 200u);
}

}  // namespace
}  // namespace pagoda
