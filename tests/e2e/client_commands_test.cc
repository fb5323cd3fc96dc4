// generate, chat, model, health and bench as processes, against a real daemon.

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::e2e::client_commands_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ClientCommands : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto started = TestDaemon::Start({});
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = started->release();
  }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }

  static CommandResult Run(std::vector<std::string> arguments,
                           absl::string_view standard_input = "") {
    arguments.push_back(absl::StrCat("--address=", daemon_->grpc_address()));
    return RunPagoda(arguments, absl::Seconds(120), standard_input);
  }

  static TestDaemon* daemon_;
};

TestDaemon* ClientCommands::daemon_ = nullptr;

TEST_F(ClientCommands, GenerateGivesTheSameTextHoweverItIsAsked) {
  const std::vector<std::string> arguments = {
      "generate", "Once upon a time", "--max-tokens=24", "--temperature=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), arguments.begin(), arguments.end());
    return more;
  };
  const CommandResult streamed = Run(arguments);
  EXPECT_EQ(streamed.exit_code, 0) << streamed.err;
  EXPECT_THAT(streamed.out, HasSubstr("he was so happy"));
  EXPECT_EQ(Run(with({"--unary"})).out, streamed.out);
  EXPECT_EQ(Run({"generate", "-", "--max-tokens=24", "--temperature=0"}, "Once upon a time").out,
            streamed.out);
  EXPECT_EQ(
      Run({"generate", "--token-ids=3777,663,259,562", "--max-tokens=24", "--temperature=0"}).out,
      streamed.out);
  std::string from_json;
  std::istringstream lines(Run(with({"--json"})).out);
  for (std::string line; std::getline(lines, line);) {
    const auto message = nlohmann::json::parse(line);
    if (message.contains("delta")) from_json += message["delta"].value("text", "");
  }
  EXPECT_EQ(from_json + "\n", streamed.out);
}

TEST_F(ClientCommands, ChatRemembersUntilItIsCleared) {
  const std::vector<std::string> arguments = {"chat", "--temperature=0", "--max-tokens=12"};
  const std::string first = Run(arguments, "Once upon a time").out;
  EXPECT_THAT(first, HasSubstr("so happy"));
  // The same message after another is another prompt.
  const std::string twice = Run(arguments, "Once upon a time\nOnce upon a time\n").out;
  EXPECT_THAT(twice, StartsWith(first));
  EXPECT_NE(twice, first + first);
  for (const char* forget : {"/clear", "/undo"}) {
    const CommandResult result =
        Run(arguments, absl::StrCat("Once upon a time\n", forget, "\nOnce upon a time\n"));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, first + first) << forget;
  }
  EXPECT_EQ(Run(arguments, "Once upon a time\n/quit\nAnd\n").out, first);
  EXPECT_EQ(Run(arguments, "Once\\\nupon\n").exit_code, 0);
}

TEST_F(ClientCommands, ChatEndsAtARefusal) {
  const CommandResult result = Run({"chat", "--top-p=7"}, "hi\nho\n");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("sampling.top_p"));
  EXPECT_EQ(Run({"chat", "Once"}, "").exit_code, 2);
}

TEST_F(ClientCommands, RefusalsNameTheField) {
  const CommandResult result = Run({"generate", "hi", "--top-p=7"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("sampling.top_p")));
}

TEST_F(ClientCommands, HealthAndModel) {
  EXPECT_EQ(Run({"health"}).exit_code, 0);
  EXPECT_EQ(Run({"health", "--service=pagoda.v1.InferenceService"}).exit_code, 0);
  EXPECT_EQ(Run({"health", "--service=no.such.Service"}).exit_code, 3);
  EXPECT_EQ(RunPagoda({"health", "--address=unix:/no/such/socket"}).exit_code, 4);
  EXPECT_THAT(Run({"model"}).out, AllOf(HasSubstr("fable-7m"), HasSubstr("LlamaForCausalLM")));
}

TEST_F(ClientCommands, BenchReports) {
  const fixtures::TemporaryDir dir;
  const std::string file = absl::StrCat(dir.path(), "/report.json");
  const CommandResult result = Run({"bench",
                                    "--requests=12",
                                    "--concurrency=4",
                                    "--input-tokens=40",
                                    "--output-tokens=8",
                                    "--warmup=1",
                                    absl::StrCat("--json=", file)});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("12 ok, 0 failed"));
  std::ifstream in(file);
  const auto report = nlohmann::json::parse(in);
  EXPECT_EQ(report["input_tokens"], 480);
  EXPECT_EQ(report["output_tokens"], 96);
  EXPECT_EQ(report["cached_input_tokens"], 0);
  EXPECT_GT(report["ttft_ms"]["p50"], 0.0);
  // A shared prefix is found in the cache.
  EXPECT_EQ(Run({"bench",
                 "--requests=4",
                 "--concurrency=1",
                 "--input-tokens=80",
                 "--shared-prefix-tokens=64",
                 "--output-tokens=2",
                 "--warmup=1",
                 absl::StrCat("--json=", file)})
                .exit_code,
            0);
  std::ifstream again(file);
  EXPECT_EQ(nlohmann::json::parse(again)["cached_input_tokens"], 4 * 64);
}

}  // namespace
}  // namespace pagoda::e2e::client_commands_test
