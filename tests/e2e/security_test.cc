// Classes of faults that other servers had, of which this one as a whole is asked; what parts of it
// are asked is where they are tested. tests/structure/security_classes.txt names both.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/calls.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::security_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string PathOf(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "security-", getpid(), "-", name);
}

// What a process has open: "socket:[4711]", "/dev/null", by descriptor.
std::map<std::string, std::string> OpenFiles(pid_t pid) {
  std::map<std::string, std::string> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), ignored))
    files[entry.path().filename().string()] = fs::read_symlink(entry.path(), ignored).string();
  return files;
}

// "tcp 0100007F" (127.0.0.1) or "unix /path", of each socket that the process listens on.
std::multiset<std::string> Listeners(pid_t pid) {
  std::set<std::string> own;
  for (const auto& [fd, target] : OpenFiles(pid)) own.insert(target);
  std::multiset<std::string> listeners;
  const std::string net = absl::StrCat("/proc/", pid, "/net/");
  const auto each_line = [&](const std::string& table, auto take) {
    std::ifstream in(net + table);
    for (std::string line; std::getline(in, line);) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (fields.size() > 6) take(fields);
    }
  };
  for (const char* table : {"tcp", "tcp6"}) {
    each_line(table, [&](const std::vector<std::string>& f) {
      if (f.size() <= 9 || f[3] != "0A" || own.count("socket:[" + f[9] + "]") == 0) return;
      absl::string_view address = f[1];
      address = address.substr(0, address.find(':'));
      // What IPv6 maps IPv4 to.
      const bool is_v4 = absl::ConsumePrefix(&address, "0000000000000000FFFF0000");
      listeners.insert(absl::StrCat(is_v4 || address.size() == 8 ? "tcp " : "tcp6 ", address));
    });
  }
  // "Num RefCount Protocol Flags Type St Inode Path", where a flag says that it accepts.
  each_line("unix", [&](const std::vector<std::string>& f) {
    if (f[3] != "00010000" || own.count("socket:[" + f[6] + "]") == 0) return;
    listeners.insert(absl::StrCat("unix ", f.size() > 7 ? f[7] : ""));
  });
  return listeners;
}

std::unique_ptr<TestDaemon> Start(TestDaemonOptions options) {
  auto daemon = TestDaemon::Start(std::move(options));
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  if (!daemon.ok()) std::abort();
  return *std::move(daemon);
}

TEST(Security, S2ListensWhereItIsAskedToAndNowhereElse) {
  const std::string loopback = "tcp 0100007F", admin = PathOf("admin.sock");
  {
    const auto daemon = Start({});
    EXPECT_THAT(Listeners(daemon->pid()),
                ElementsAre(loopback, absl::StrCat("unix ", daemon->grpc_address().substr(5))));
    // S1: workers are spoken to by what they inherit.
    ASSERT_FALSE(daemon->WorkerPids().empty());
    for (const pid_t worker : daemon->WorkerPids()) EXPECT_THAT(Listeners(worker), IsEmpty());
  }
  {
    const auto daemon =
        Start({.flags = {"--metrics-address=none", "--tensor-parallel-size=2"}, .over_tcp = true});
    EXPECT_THAT(Listeners(daemon->pid()), ElementsAre(loopback));
    for (const pid_t worker : daemon->WorkerPids()) EXPECT_THAT(Listeners(worker), IsEmpty());
  }
  const auto daemon = Start({.flags = {"--device=sim", "--replicas=2", "--admin-socket=" + admin},
                             .over_tcp = true,
                             .with_http = true});
  EXPECT_THAT(Listeners(daemon->pid()),
              ElementsAre(loopback, loopback, loopback, absl::StrCat("unix ", admin)));
}

// S10, S15: what clients ask for leaves nothing on disk, and nothing is loaded for it.
TEST(Security, S10RequestsLeaveNoFiles) {
  const std::string home = PathOf("home");
  fs::create_directories(home);
  for (const char* name : {"HOME", "TMPDIR", "XDG_CACHE_HOME"}) setenv(name, home.c_str(), 1);
  const auto daemon = Start({.with_http = true});
  for (const char* name : {"HOME", "TMPDIR", "XDG_CACHE_HOME"}) unsetenv(name);
  const auto files_in_home = [&home] {
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(home)) files.insert(entry.path());
    return files;
  };
  const std::set<std::string> home_before = files_in_home();  // the test's own
  const auto files_before = OpenFiles(daemon->pid());
  for (int i = 0; i < 20; ++i) {
    v1::GenerateRequest request = TextRequest("Once upon a time", 8);
    if (i % 2 == 0) request.mutable_sampling()->set_regex(absl::StrCat("[a-z ]{3,", 5 + i, "}"));
    EXPECT_TRUE(Generate(daemon->stub(), request).status.ok());
    const json schema = {{"type", "object"},
                         {"properties", {{absl::StrCat("p", i), {{"type", "integer"}}}}}};
    const HttpResponse reply = HttpPost(
        daemon->http_port(),
        "/v1/completions",
        {{"prompt", "a"}, {"max_tokens", 8}, {"guided_json", schema}, {"cache_salt", "../x"}});
    EXPECT_EQ(reply.status, 200) << reply.body;
  }
  EXPECT_EQ(files_in_home(), home_before);
  for (const auto& [fd, target] : OpenFiles(daemon->pid())) {
    if (files_before.count(fd) == 0) EXPECT_THAT(target, Not(HasSubstr("/"))) << fd;
  }
  // S15: nothing that decodes pictures, sounds or archives of clients.
  std::vector<pid_t> processes = daemon->WorkerPids();
  processes.push_back(daemon->pid());
  for (const pid_t pid : processes) {
    std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
    const std::string text{std::istreambuf_iterator<char>(maps), {}};
    EXPECT_THAT(text, HasSubstr("pagoda"));
    for (const char* library : {"libjpeg",
                                "libpng",
                                "libwebp",
                                "libtiff",
                                "libopenjp",
                                "libgif",
                                "libavcodec",
                                "libavformat",
                                "libsndfile",
                                "libopencv",
                                "libpython"})
      EXPECT_THAT(text, Not(HasSubstr(library)));
  }
}

// What is told to clients is about their requests; S17: what they name is no path.
TEST(Security, S13ErrorsTellNothingOfTheInside) {
  const auto daemon = Start({.with_http = true});
  const int port = daemon->http_port();
  std::vector<std::string> told;
  for (const char* path : {"/",
                           "/etc/passwd",
                           "/v1/models/../../etc/passwd",
                           "/v1/models/%2e%2e%2fetc%2fpasswd",
                           "/v1/models//etc/passwd",
                           "/v1/models/fable-7m/../../config.json",
                           "/metrics/../v1",
                           "//",
                           "/.."}) {
    const HttpResponse reply = HttpGet(port, path);
    if (std::string(path) == "/") continue;
    EXPECT_EQ(reply.status, 404) << path;
    told.push_back(reply.body);
  }
  for (const char* name : {"../fable-7m",
                           "/etc/passwd",
                           "..",
                           "fable-7m/",
                           "file:///etc/passwd",
                           "http://127.0.0.1/x",
                           "org/model",
                           "fable-7m\n",
                           "."}) {
    const HttpResponse reply =
        HttpPost(port, "/v1/completions", {{"prompt", "a"}, {"model", name}, {"max_tokens", 1}});
    EXPECT_EQ(reply.status, 404) << name;
    told.push_back(reply.body);
    v1::GenerateRequest request = TextRequest("a", 1);
    request.set_model(name);
    const grpc::Status status = Generate(daemon->stub(), request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << name;
    told.push_back(status.error_message());
  }
  const std::vector<json> bodies = {json::array(),
                                    {{"prompt", 7}},
                                    {{"prompt", "a"}, {"guided_regex", "(((("}},
                                    {{"prompt", "a"}, {"guided_json", {{"type", 7}}}},
                                    {{"prompt", std::vector<int>(100'000, 5)}},
                                    {{"prompt", {-1}}},
                                    {{"prompt", "a"}, {"n", 1e9}}};
  for (const json& body : bodies) {
    const HttpResponse reply = HttpPost(port, "/v1/completions", body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    told.push_back(reply.body);
  }
  for (const std::string& text : told) {
    for (const std::string& inside : {DefaultModelDir(),
                                      std::string("safetensors"),
                                      std::string(".cc"),
                                      std::string("absl"),
                                      std::string("root:"),
                                      absl::StrCat(daemon->pid()),
                                      std::string("/proc")})
      EXPECT_THAT(text, Not(HasSubstr(inside)));
  }
}

}  // namespace
}  // namespace pagoda::e2e::security_test
