// What an operator does to a daemon: keys, reloads, the admin service.

#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e::operations_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kSim = {
    "--device=sim", "--sim-base-us=1000", "--sim-per-token-us=0"};

std::string PathOf(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "ops-", getpid(), "-", name);
}

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::unique_ptr<TestDaemon> Start(std::vector<std::string> flags, const std::string& key = "") {
  flags.insert(flags.begin(), kSim.begin(), kSim.end());
  auto daemon = TestDaemon::Start({.flags = std::move(flags), .api_key = key});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  if (!daemon.ok()) std::abort();
  return *std::move(daemon);
}

// Exit code of `pagoda generate` that shows the first key of the file.
int Generate(const TestDaemon& daemon, const std::string& key_file) {
  std::vector<std::string> arguments = {
      "generate", "hello", "--max-tokens=2", absl::StrCat("--address=", daemon.grpc_address())};
  if (!key_file.empty()) arguments.push_back("--api-key-file=" + key_file);
  return RunPagoda(arguments).exit_code;
}

TEST(Operations, KeysAreAskedForAndMayChange) {
  const std::string keys = PathOf("keys"), mine = PathOf("mine"), wrong = PathOf("wrong");
  Write(keys, "sk-old tenant=red\n");
  Write(mine, "# mine\nsk-old\n");
  Write(wrong, "sk-wrong\n");
  const auto daemon = Start({"--api-key-file=" + keys}, "sk-old");
  EXPECT_EQ(Generate(*daemon, mine), 0);
  EXPECT_EQ(Generate(*daemon, ""), 3);
  EXPECT_EQ(Generate(*daemon, wrong), 3);
  EXPECT_EQ(*daemon->Metric("pagoda_requests_rejected_total{reason=\"auth\"}"), 2);

  const auto reload = [&](const std::string& text, const std::string& line) {
    Write(keys, text);
    daemon->Signal(SIGHUP);
    return TestDaemon::Eventually(absl::Seconds(10),
                                  [&] { return daemon->Log().find(line) != std::string::npos; });
  };
  EXPECT_TRUE(
      reload("sk-new weight=x\n", "not reloaded, all stays as it was: --api-key-file: line 1"));
  EXPECT_EQ(Generate(*daemon, mine), 0);
  EXPECT_TRUE(reload("sk-new\n", "reloaded API keys"));
  EXPECT_EQ(Generate(*daemon, mine), 3);
  EXPECT_EQ(Generate(*daemon, keys), 0);
  EXPECT_THAT(daemon->Log(), Not(HasSubstr("sk-")));
}

class Admin : public ::testing::Test {
 protected:
  static CommandResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"admin", "--socket=" + socket_});
    return RunPagoda(arguments);
  }

  inline static const std::string socket_ = PathOf("admin.sock");
};

TEST_F(Admin, OperatesARunningDaemon) {
  const std::string keys = PathOf("admin-keys");
  Write(keys, "sk-secret\n");
  const auto daemon = Start(
      {"--admin-socket=" + socket_, "--api-key-file=" + keys, "--max-num-seqs=7"}, "sk-secret");
  struct stat file = {};
  ASSERT_EQ(stat(socket_.c_str(), &file), 0);
  EXPECT_TRUE(S_ISSOCK(file.st_mode));
  EXPECT_EQ(file.st_mode & 0777, 0600u);

  const CommandResult config = Run({"config"});
  EXPECT_EQ(config.exit_code, 0) << config.err;
  EXPECT_THAT(config.out, HasSubstr("max-num-seqs: 7"));
  EXPECT_THAT(config.out, HasSubstr("# --max-num-seqs"));
  EXPECT_THAT(config.out, Not(HasSubstr("sk-secret")));

  EXPECT_EQ(Run({"log-level", "debug"}).exit_code, 0);
  EXPECT_NE(Run({"log-level", "loud"}).exit_code, 0);

  EXPECT_EQ(Generate(*daemon, keys), 0);
  const CommandResult state = Run({"state"});
  EXPECT_EQ(state.exit_code, 0) << state.err;
  const auto json = nlohmann::json::parse(state.out);
  EXPECT_GT(json["kvPool"]["totalBlocks"].get<int>(), 0);
  EXPECT_EQ(json["tenants"].size(), 1u);
  const CommandResult flushed = Run({"flush-prefix-cache"});
  EXPECT_EQ(flushed.exit_code, 0) << flushed.err;
  EXPECT_THAT(flushed.out, HasSubstr("blocks flushed"));

  EXPECT_EQ(Run({"drain"}).exit_code, 0);
  EXPECT_EQ(*daemon->WaitForExit(absl::Seconds(10)), 0);
  EXPECT_NE(Run({"state"}).exit_code, 0);
}

// Each replica tells of itself, and all are flushed.
TEST_F(Admin, OperatesReplicas) {
  const auto daemon = Start({"--admin-socket=" + socket_, "--replicas=2", "--block-size=16"});
  const auto cached_blocks = [this](const std::string& replica) {
    const CommandResult state = Run({"state", "--replica=" + replica});
    EXPECT_EQ(state.exit_code, 0) << state.err;
    return nlohmann::json::parse(state.out)["kvPool"]["cachedBlocks"].get<int>();
  };
  // Prompts that have nothing in common go to whoever is less busy.
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      std::vector<uint32_t> ids(64);
      std::iota(ids.begin(), ids.end(), static_cast<uint32_t>(10 + 64 * i));
      EXPECT_TRUE(e2e::Generate(daemon->stub(), IdsRequest(ids, 8)).status.ok());
    });
  }
  for (std::thread& client : clients) client.join();
  const int first = cached_blocks("0"), second = cached_blocks("1");
  EXPECT_GT(first, 0);
  EXPECT_GT(second, 0);
  EXPECT_EQ(*daemon->Metric("pagoda_kv_blocks{pool=\"0\",state=\"cached\"}"), first + second);
  const CommandResult flushed = Run({"flush-prefix-cache"});
  EXPECT_EQ(flushed.out, absl::StrCat(first + second, " blocks flushed\n"));
  EXPECT_EQ(cached_blocks("0"), 0);
  EXPECT_EQ(cached_blocks("1"), 0);
  const CommandResult none = Run({"state", "--replica=2"});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_THAT(none.err, HasSubstr("replica: expected less than 2"));
}

TEST_F(Admin, IsNotServedElsewhere) {
  const auto daemon = Start({"--admin-socket=" + socket_});
  // The public port knows no such service.
  const std::string path = daemon->grpc_address().substr(std::string("unix:").size());
  EXPECT_EQ(RunPagoda({"admin", "--socket=" + path, "drain"}).exit_code, 3);
  // Nor does the admin socket know others.
  EXPECT_EQ(RunPagoda({"model", "--address=unix:" + socket_}).exit_code, 3);
  EXPECT_EQ(Generate(*daemon, ""), 0);
}

TEST_F(Admin, ATakenSocketIsRefused) {
  const auto daemon = Start({"--admin-socket=" + socket_});
  std::vector<std::string> arguments = {"serve",
                                        DefaultModelDir(),
                                        "--grpc-address=127.0.0.1:0",
                                        "--metrics-address=none",
                                        "--http-address=none",
                                        "--admin-socket=" + socket_};
  arguments.insert(arguments.end(), kSim.begin(), kSim.end());
  const CommandResult second = RunPagoda(arguments);
  EXPECT_EQ(second.exit_code, 6);
  EXPECT_THAT(second.err, HasSubstr("--admin-socket"));
  EXPECT_EQ(Run({"state"}).exit_code, 0);
}

// B111: whoever should read the log and does not stalls nobody.
TEST(Logs, B111ReaderThatStandsStillStallsNobody) {
  const std::string pipe = PathOf("log-pipe"), socket = PathOf("log.sock");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int fd = open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const std::string full(4096, '.');
  while (write(fd, full.data(), full.size()) > 0) {
  }
  std::vector<std::string> arguments = {"serve",
                                        DefaultModelDir(),
                                        "--grpc-address=unix:" + socket,
                                        "--metrics-address=none",
                                        "--http-address=none",
                                        "--log-level=debug"};
  arguments.insert(arguments.end(), kSim.begin(), kSim.end());
  const PagodaProcess daemon(arguments, pipe);
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()));
  EXPECT_TRUE(e2e::Generate(*stub, TextRequest("a", 2)).status.ok());
  v1::GenerateRequest bad = TextRequest("\x1b[2J\r\n", 2);
  bad.mutable_sampling()->set_temperature(-1);
  const absl::Time start = absl::Now();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(e2e::Generate(*stub, bad).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_TRUE(e2e::Generate(*stub, TextRequest("a", 2)).status.ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));
  close(fd);
}

// What clients send is nobody's to read in the log, whatever becomes of it.
TEST(Logs, TellOfRequestsButNotWhatTheyHold) {
  constexpr char kCanary[] = "xylophone-canary";
  auto daemon = Start({"--log-level=debug", "--log-format=json", "--max-stop-strings=1"});
  const auto call = [&](v1::GenerateRequest request) {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    request.mutable_prompt()->set_text(absl::StrCat("a prompt with a ", kCanary, "\n\x1b[31m"));
    v1::GenerateResponse response;
    const grpc::Status status = daemon->stub().Generate(&context, request, &response);
    const auto& metadata = context.GetServerInitialMetadata();
    const auto found = metadata.find("traceparent");
    EXPECT_TRUE(!status.ok() || found != metadata.end());
    return status;
  };
  v1::GenerateRequest good;
  good.set_request_id("the-good-one");
  good.mutable_stopping()->set_max_tokens(3);
  good.mutable_stopping()->add_stop(kCanary);
  EXPECT_TRUE(call(good).ok());
  v1::GenerateRequest bad = good;
  bad.mutable_stopping()->add_stop("second");
  EXPECT_FALSE(call(bad).ok());
  bad = good;
  bad.mutable_sampling()->set_regex(absl::StrCat("(", kCanary));
  EXPECT_FALSE(call(bad).ok());
  bad = good;
  bad.set_model(kCanary);
  EXPECT_FALSE(call(bad).ok());
  daemon->Signal(SIGTERM);
  EXPECT_EQ(*daemon->WaitForExit(absl::Seconds(10)), 0);
  const std::string log = daemon->Log();
  EXPECT_THAT(log, Not(HasSubstr(kCanary)));
  EXPECT_THAT(log,
              HasSubstr("request started id=\\\"the-good-one\\\" api=grpc "
                        "trace=4bf92f3577b34da6a3ce929d0e0e4736"));
  EXPECT_THAT(log, HasSubstr("outcome=length code=OK"));
  EXPECT_THAT(log, HasSubstr("outcome=rejected code=INVALID_ARGUMENT"));
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);)
    EXPECT_FALSE(nlohmann::json::parse(line, nullptr, false).is_discarded()) << line;
}

}  // namespace
}  // namespace pagoda::e2e::operations_test
