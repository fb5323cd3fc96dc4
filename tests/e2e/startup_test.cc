// What keeps a daemon from starting: an exit code that is not 0, one clear line that says what to
// do, within a second or so.

#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/context_model.h"

namespace pagoda::e2e::startup_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kBadModel = 3;
constexpr int kAddressTaken = 6;
constexpr int kNoModule = 7;
constexpr int kNoDriver = 8;

// A module without CUDA, for a machine that PAGODA_FAKE_DRIVER describes.
constexpr char kFakeModuleDir[] = PAGODA_FAKE_MODULE_DIR;

// Lines that do not only tell progress.
std::vector<std::string> Complaints(const CommandResult& result) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(result.err, '\n', absl::SkipEmpty())) {
    if (!absl::StrContains(line, "pagoda: ")) lines.emplace_back(line);
    if (absl::StrContains(line, "error: ") || absl::StrContains(line, " ERROR"))
      lines.emplace_back(line);
  }
  return lines;
}

CommandResult ServeAndFail(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "serve");
  arguments.push_back("--metrics-address=127.0.0.1:0");
  arguments.push_back("--http-address=none");
  const absl::Time start = absl::Now();
  CommandResult result = RunPagoda(arguments);
  // A second on an idle machine; this one may be busy.
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_NE(result.exit_code, 0) << result.err;
  EXPECT_GT(result.exit_code, 0) << "killed: " << result.err;
  return result;
}

class Startup : public ::testing::Test {
 protected:
  Startup() : model_(fixtures::WriteModelDir(fixtures::ContextModel({}))) {
    std::string name = "/tmp/pagoda-startup-XXXXXX";
    dir_ = mkdtemp(name.data());
  }
  ~Startup() override { fs::remove_all(dir_); }

  std::string AddressFlag() const { return absl::StrCat("--grpc-address=unix:", dir_, "/s"); }
  // Fails to serve the model directory, whose line names `what`.
  void ExpectRefused(const std::string& what) {
    SCOPED_TRACE(what);
    const CommandResult result = ServeAndFail({model_.path(), AddressFlag()});
    EXPECT_EQ(result.exit_code, kBadModel) << result.err;
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_LE(Complaints(result).size(), 1u) << result.err;
    EXPECT_FALSE(fs::exists(dir_ + "/s"));
  }

  fixtures::TemporaryDir model_;
  std::string dir_;
};

// With a GPU there is nothing to see here; without one the build may have the module or not.
TEST_F(Startup, CudaWithoutModuleOrDriver) {
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has a GPU";
  // A file that is no module, found first.
  std::ofstream(dir_ + "/pagoda_cuda.so") << "no module";
  const CommandResult broken = ServeAndFail(
      {model_.path(), AddressFlag(), "--device=cuda", "--dtype=bfloat16", "--backend-dir=" + dir_});
  EXPECT_EQ(broken.exit_code, kNoModule) << broken.err;
  EXPECT_THAT(broken.err, HasSubstr("cannot load " + dir_ + "/pagoda_cuda.so"));
  EXPECT_LE(Complaints(broken).size(), 1u) << broken.err;

  const CommandResult none =
      ServeAndFail({model_.path(), AddressFlag(), "--device=cuda", "--dtype=bfloat16"});
  if (none.exit_code == kNoDriver) {
    EXPECT_THAT(none.err, HasSubstr("no NVIDIA driver was found"));
  } else {
    EXPECT_EQ(none.exit_code, kNoModule) << none.err;
    EXPECT_THAT(none.err, HasSubstr("device cuda needs the module pagoda_cuda.so"));
  }
  EXPECT_FALSE(fs::exists(dir_ + "/s"));
}

// Every reason for which a GPU cannot be used has its line and its exit code.
TEST_F(Startup, EachFaultOfADeviceHasItsExitCode) {
  struct Case {
    const char* driver;
    int exit_code;
    const char* text;
  };
  constexpr Case kCases[] = {
      {"cuda=0,devices=0", kNoDriver, "no NVIDIA driver was found"},
      {"cuda=12080", 9, "the NVIDIA driver supports CUDA 12.8, but this build needs CUDA 13.0"},
      {"devices=0", 4, "the NVIDIA driver sees no GPU"},
      {"devices=1", 4, "GPU 1 does not exist: the driver shows 1, numbered from 0"},
      {"devices=2,capability=80", 10, "compute capability 8.0"},
      {"devices=2,free_mib=100", 11, "could not be had: 104857600 of"},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.driver);
    setenv("PAGODA_FAKE_DRIVER", c.driver, 1);
    const CommandResult result = ServeAndFail({model_.path(),
                                               AddressFlag(),
                                               "--device=cuda",
                                               "--device-index=1",
                                               "--dtype=bfloat16",
                                               absl::StrCat("--backend-dir=", kFakeModuleDir)});
    EXPECT_EQ(result.exit_code, c.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(c.text));
    EXPECT_LE(Complaints(result).size(), 1u) << result.err;
  }
  unsetenv("PAGODA_FAKE_DRIVER");
  setenv("PAGODA_FAKE_ABI", "1", 1);
  const CommandResult result = ServeAndFail({model_.path(),
                                             AddressFlag(),
                                             "--device=cuda",
                                             "--dtype=bfloat16",
                                             absl::StrCat("--backend-dir=", kFakeModuleDir)});
  unsetenv("PAGODA_FAKE_ABI");
  EXPECT_EQ(result.exit_code, kNoModule) << result.err;
  EXPECT_THAT(result.err, HasSubstr("was built for another version of pagoda"));
}

TEST_F(Startup, MissingModelDirectory) {
  const CommandResult result = ServeAndFail({"/no/such/model", AddressFlag()});
  EXPECT_EQ(result.exit_code, kBadModel);
  EXPECT_THAT(result.err, HasSubstr("/no/such/model"));
}

TEST_F(Startup, ModelThatIsAFile) {
  const CommandResult result = ServeAndFail({model_.path() + "/config.json", AddressFlag()});
  EXPECT_EQ(result.exit_code, kBadModel);
}

TEST_F(Startup, UnreadableFiles) {
  if (geteuid() == 0) {
    // Root reads everything; a folder in a file's place is as unreadable.
    fs::remove(model_.path() + "/tokenizer.json");
    fs::create_directory(model_.path() + "/tokenizer.json");
  } else {
    chmod((model_.path() + "/tokenizer.json").c_str(), 0);
  }
  ExpectRefused("tokenizer.json");
}

TEST_F(Startup, BrokenConfig) {
  model_.Write("config.json", "{");
  ExpectRefused("config.json");
}

TEST_F(Startup, UnknownArchitecture) {
  model_.Write("config.json", "{\"architectures\": [\"NoSuchForCausalLM\"]}");
  ExpectRefused("NoSuchForCausalLM");
}

TEST_F(Startup, BrokenTokenizer) {
  model_.Write("tokenizer.json", "{\"model\": 1}");
  ExpectRefused("tokenizer.json");
}

TEST_F(Startup, BrokenGenerationConfig) {
  model_.Write("generation_config.json", "[1,2");
  ExpectRefused("generation_config.json");
}

TEST_F(Startup, NoWeights) {
  for (const auto& entry : fs::directory_iterator(model_.path())) {
    if (entry.path().extension() == ".safetensors") fs::remove(entry.path());
  }
  ExpectRefused("safetensors");
}

TEST_F(Startup, TruncatedWeights) {
  for (const auto& entry : fs::directory_iterator(model_.path())) {
    if (entry.path().extension() == ".safetensors")
      fs::resize_file(entry.path(), fs::file_size(entry.path()) - 1);
  }
  ExpectRefused(".safetensors");
}

TEST_F(Startup, HeaderOfTheWeightsTooLarge) {
  model_.Write("model.safetensors", std::string(8, '\xff') + "{}");
  ExpectRefused("model.safetensors");
}

// Headers that agree with their files but not with sense.
TEST_F(Startup, OverlappingWeights) {
  std::string header = R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}, )"
                       R"("b": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]}})";
  header.resize(160, ' ');
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  model_.Write("model.safetensors", length + header + std::string(12, 'x'));
  ExpectRefused("overlap");
}

TEST_F(Startup, WeightsOfATypeThatIsNoWeights) {
  std::ifstream in(model_.path() + "/model.safetensors", std::ios::binary);
  std::string file(std::istreambuf_iterator<char>(in), {});
  const size_t type = file.find("\"F32\"");
  ASSERT_NE(type, std::string::npos);
  model_.Write("model.safetensors", file.replace(type, 5, "\"I32\""));
  ExpectRefused("I32");
}

TEST_F(Startup, UnreadableWeights) {
  fs::remove(model_.path() + "/model.safetensors");
  fs::create_directory(model_.path() + "/model.safetensors");
  ExpectRefused("model.safetensors");
}

TEST_F(Startup, MissingConfig) {
  fs::remove(model_.path() + "/config.json");
  ExpectRefused("config.json");
}

TEST_F(Startup, MissingShard) {
  model_.Write(
      "model.safetensors.index.json",
      "{\"weight_map\": {\"model.embed_tokens.weight\": \"model-00001-of-00002.safetensors\"}}");
  ExpectRefused("model-00001-of-00002.safetensors");
}

TEST_F(Startup, TensorThatTheModelNeedsIsMissing) {
  fixtures::ModelFiles files = fixtures::ContextModel({});
  files.tensors.pop_back();
  const auto model = fixtures::WriteModelDir(files);
  const CommandResult result = ServeAndFail({model.path(), AddressFlag()});
  EXPECT_EQ(result.exit_code, kBadModel) << result.err;
}

TEST_F(Startup, NoBlockFits) {
  const CommandResult result = ServeAndFail({model_.path(), AddressFlag(), "--kv-cache-memory=1"});
  EXPECT_THAT(result.err, HasSubstr("--kv-cache-memory"));
}

TEST_F(Startup, BadAddresses) {
  for (const std::string address : {"8001", "127.0.0.1:99999", "unix:"}) {
    const CommandResult result = ServeAndFail({model_.path(), "--grpc-address=" + address});
    EXPECT_THAT(result.err, HasSubstr("--grpc-address"));
  }
  const CommandResult result =
      ServeAndFail({model_.path(), "--grpc-address=unix:/no/such/folder/s"});
  EXPECT_EQ(result.exit_code, kAddressTaken);
  EXPECT_THAT(result.err, HasSubstr("/no/such/folder/s"));
  const CommandResult metrics =
      RunPagoda({"serve", model_.path(), AddressFlag(), "--metrics-address=unix:/tmp/m"});
  EXPECT_NE(metrics.exit_code, 0);
  EXPECT_THAT(metrics.err, HasSubstr("--metrics-address=unix:/tmp/m"));
}

TEST_F(Startup, TakenPort) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 4), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string taken = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  for (const std::string flag : {"--grpc-address", "--metrics-address", "--http-address"}) {
    const CommandResult result = RunPagoda({"serve",
                                            model_.path(),
                                            AddressFlag(),
                                            "--metrics-address=127.0.0.1:0",
                                            "--http-address=none",
                                            flag + "=" + taken});
    EXPECT_EQ(result.exit_code, kAddressTaken) << result.err;
    EXPECT_THAT(result.err, HasSubstr(taken));
    EXPECT_THAT(result.err, HasSubstr(flag));
    EXPECT_THAT(result.err, HasSubstr("in use"));
  }
  close(fd);
}

// Nobody asked for it, so all else is served.
TEST_F(Startup, TakenDefaultPortOfHttpIsAWarning) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(8000);
  // Where this fails somebody else has it.
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) listen(fd, 4);
  const PagodaProcess daemon(
      {"serve", model_.path(), AddressFlag(), "--metrics-address=127.0.0.1:0"}, dir_ + "/log");
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateChannel(absl::StrCat("unix:", dir_, "/s"), grpc::InsecureChannelCredentials()));
  EXPECT_TRUE(Generate(*stub, TextRequest("a", 1), absl::Seconds(30)).status.ok());
  std::ifstream log(dir_ + "/log");
  const std::string text(std::istreambuf_iterator<char>(log), {});
  EXPECT_THAT(text, HasSubstr("no HTTP API: cannot listen on 127.0.0.1:8000: in use"));
  EXPECT_THAT(text, HasSubstr("--http-address"));
  close(fd);
}

TEST_F(Startup, PortOfAnotherDaemon) {
  const std::string log = dir_ + "/log";
  auto first = TestDaemon::Start({.model_dir = model_.path(),
                                  .flags = {"--grpc-address=127.0.0.1:0"},
                                  .wait_until_serving = false});
  ASSERT_TRUE(first.ok());
  std::string address;
  ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(30), [&] {
    const std::string text = (*first)->Log();
    const size_t at = text.find("serving ");
    if (at == std::string::npos) return false;
    const size_t begin = text.find("127.0.0.1:", at);
    address = text.substr(begin, text.find('\n', begin) - begin);
    return true;
  })) << (*first)->Log();
  // Two daemons must not share a port, as gRPC's SO_REUSEPORT would let them.
  const CommandResult second = ServeAndFail({model_.path(), "--grpc-address=" + address});
  EXPECT_EQ(second.exit_code, kAddressTaken);
  EXPECT_THAT(second.err, HasSubstr("in use"));
}

TEST_F(Startup, UnixSocketOfALiveDaemonAndOfADeadOne) {
  TestDaemonOptions options{
      .model_dir = model_.path(), .flags = {AddressFlag()}, .wait_until_serving = false};
  const auto stub = [&] {
    return v1::InferenceService::NewStub(
        grpc::CreateChannel(absl::StrCat("unix:", dir_, "/s"), grpc::InsecureChannelCredentials()));
  };
  const auto serves = [&] {
    return Generate(*stub(), TextRequest("a", 1), absl::Seconds(5)).status.ok();
  };
  auto first = TestDaemon::Start(options);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(TestDaemon::Eventually(absl::Seconds(30), serves)) << (*first)->Log();
  EXPECT_EQ(ServeAndFail({model_.path(), AddressFlag()}).exit_code, kAddressTaken);
  EXPECT_TRUE(serves());
  // Killed, it leaves its socket file, which the next one takes over.
  (*first)->Signal(SIGKILL);
  ASSERT_TRUE((*first)->WaitForExit(absl::Seconds(10)).ok());
  ASSERT_TRUE(fs::exists(dir_ + "/s"));
  auto second = TestDaemon::Start(options);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(30), serves)) << (*second)->Log();
  (*second)->Signal(SIGTERM);
  EXPECT_EQ((*second)->WaitForExit(absl::Seconds(10)).value_or(-1), 0);
  EXPECT_FALSE(fs::exists(dir_ + "/s"));
}

TEST_F(Startup, B108DaemonsSideBySide) {
  std::vector<std::unique_ptr<TestDaemon>> daemons;
  for (int i = 0; i < 4; ++i) {
    auto daemon = TestDaemon::Start({.model_dir = model_.path(), .wait_until_serving = false});
    ASSERT_TRUE(daemon.ok());
    daemons.push_back(*std::move(daemon));
  }
  for (const auto& daemon : daemons) {
    EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(60), [&] {
      return Generate(daemon->stub(), TextRequest("a", 2), absl::Seconds(5)).status.ok();
    })) << daemon->Log();
    EXPECT_EQ(daemon->Metric("pagoda_generation_tokens_total{").value_or(-1), 2);
  }
}

}  // namespace
}  // namespace pagoda::e2e::startup_test
