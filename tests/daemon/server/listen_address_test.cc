#include "daemon/server/listen_address.h"

#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddressTest, Parses) {
  const auto tcp = ParseListenAddress("--grpc-address", "127.0.0.1:8001");
  ASSERT_TRUE(tcp.ok());
  EXPECT_EQ(tcp->host, "127.0.0.1");
  EXPECT_EQ(tcp->port, 8001);
  EXPECT_TRUE(tcp->IsLoopback());
  EXPECT_EQ(tcp->ToString(), "127.0.0.1:8001");
  const auto six = ParseListenAddress("--grpc-address", "[::1]:0");
  ASSERT_TRUE(six.ok());
  EXPECT_EQ(six->host, "::1");
  EXPECT_EQ(six->ToString(), "[::1]:0");
  EXPECT_TRUE(six->IsLoopback());
  const auto unix_socket = ParseListenAddress("--grpc-address", "unix:/run/a.sock");
  ASSERT_TRUE(unix_socket.ok());
  EXPECT_EQ(unix_socket->path, "/run/a.sock");
  EXPECT_EQ(unix_socket->ToString(), "unix:/run/a.sock");
  EXPECT_FALSE(ParseListenAddress("f", "0.0.0.0:1")->IsLoopback());
}

TEST(ListenAddressTest, RefusesByFlagAndText) {
  for (const std::string text : {"",
                                 "8001",
                                 "127.0.0.1",
                                 "127.0.0.1:",
                                 "127.0.0.1:65536",
                                 "127.0.0.1:-1",
                                 ":8001",
                                 "::1:8001",
                                 "127.0.0.1:80x",
                                 "unix:"}) {
    const auto address = ParseListenAddress("--grpc-address", text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("--grpc-address=" + text));
  }
  EXPECT_FALSE(ParseListenAddress("f", "unix:" + std::string(200, 'p')).ok());
}

class UnixPathTest : public ::testing::Test {
 protected:
  UnixPathTest() {
    std::string name = "/tmp/pagoda-listen-XXXXXX";
    dir_ = mkdtemp(name.data());
    address_ = *ParseListenAddress("--grpc-address", "unix:" + dir_ + "/s");
  }
  ~UnixPathTest() override { std::filesystem::remove_all(dir_); }

  int Listen() const {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    address_.path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd, 4), 0);
    return fd;
  }

  std::string dir_;
  ListenAddress address_;
};

TEST_F(UnixPathTest, NothingThere) { EXPECT_TRUE(PrepareAddress(address_).ok()); }

TEST_F(UnixPathTest, LeftoverIsRemoved) {
  close(Listen());
  ASSERT_TRUE(std::filesystem::exists(address_.path));
  EXPECT_TRUE(PrepareAddress(address_).ok());
  EXPECT_FALSE(std::filesystem::exists(address_.path));
}

TEST_F(UnixPathTest, LiveSocketIsLeftAlone) {
  const int fd = Listen();
  const absl::Status status = PrepareAddress(address_);
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use by another process"));
  EXPECT_TRUE(std::filesystem::exists(address_.path));
  close(fd);
}

TEST_F(UnixPathTest, OtherFilesAreLeftAlone) {
  std::ofstream(address_.path) << "precious";
  EXPECT_TRUE(absl::IsAlreadyExists(PrepareAddress(address_)));
  EXPECT_TRUE(std::filesystem::exists(address_.path));
}

TEST_F(UnixPathTest, FailuresSayWhatToDo) {
  const auto missing = *ParseListenAddress("--grpc-address", "unix:" + dir_ + "/no/such/s");
  EXPECT_THAT(std::string(ExplainBindFailure(missing).message()),
              HasSubstr("the folder does not exist"));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in taken{};
  taken.sin_family = AF_INET;
  taken.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(taken);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&taken), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&taken), &size), 0);
  ListenAddress address = *ParseListenAddress("--grpc-address", "127.0.0.1:0");
  address.port = ntohs(taken.sin_port);
  const absl::Status status = ExplainBindFailure(address);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use by another process"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--grpc-address"));
  close(fd);
}

}  // namespace
}  // namespace pagoda::daemon
