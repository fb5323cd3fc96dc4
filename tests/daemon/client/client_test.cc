// The subcommands against a service in this process.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <signal.h>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "daemon/client/commands.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "pagoda/v1/inference.grpc.pb.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Says the tokens "t0 t1 ...", as many as asked for. A prompt text chooses what else happens.
class FakeService final : public v1::InferenceService::Service {
 public:
  grpc::Status StreamGenerate(grpc::ServerContext* context,
                              const v1::StreamGenerateRequest* request,
                              grpc::ServerWriter<v1::StreamGenerateResponse>* writer) override {
    const std::string& text = request->prompt().text();
    if (text == "refuse") return {grpc::StatusCode::INVALID_ARGUMENT, "refused"};
    v1::StreamGenerateResponse response;
    response.mutable_started()->set_prompt_tokens(request->prompt().token_ids().ids_size());
    writer->Write(response);
    const uint32_t num_sequences = std::max<uint32_t>(1, request->output().n());
    for (uint32_t i = 0; i < request->stopping().max_tokens(); ++i) {
      for (uint32_t index = 0; index < num_sequences; ++index) {
        v1::Delta* delta = response.mutable_delta();
        delta->Clear();
        delta->set_index(index);
        delta->set_text(absl::StrCat("t", i, " "));
        delta->add_token_ids(i);
        writer->Write(response);
      }
    }
    if (text == "break") return {grpc::StatusCode::INTERNAL, "broken"};
    if (text == "interrupt") {
      kill(getpid(), SIGINT);
      while (!context->IsCancelled()) std::this_thread::yield();
      return grpc::Status::CANCELLED;
    }
    for (uint32_t index = 0; index < num_sequences; ++index) {
      response.mutable_finished()->set_index(index);
      response.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
      response.mutable_finished()->mutable_usage()->set_completion_tokens(
          request->stopping().max_tokens());
      writer->Write(response);
    }
    ++num_streams_;
    return grpc::Status::OK;
  }

  grpc::Status Generate(grpc::ServerContext*,
                        const v1::GenerateRequest* request,
                        v1::GenerateResponse* response) override {
    if (request->prompt().text() == "slow") return {grpc::StatusCode::DEADLINE_EXCEEDED, "slow"};
    auto* sequence = response->add_sequences();
    sequence->set_text(absl::StrCat("unary ", request->prompt().text()));
    sequence->add_token_ids(11);
    sequence->add_token_ids(12);
    return grpc::Status::OK;
  }

  grpc::Status GetModel(grpc::ServerContext*,
                        const v1::GetModelRequest* request,
                        v1::GetModelResponse* model) override {
    if (request->model() == "other") return {grpc::StatusCode::NOT_FOUND, "no model \"other\""};
    model->add_served_names("fable");
    model->set_architecture("LlamaForCausalLM");
    model->set_vocab_size(320);
    model->set_has_tokenizer(true);
    return grpc::Status::OK;
  }

  int num_streams() const { return num_streams_; }

 private:
  std::atomic<int> num_streams_{0};
};

class FakeHealth final : public grpc::health::v1::Health::Service {
 public:
  grpc::Status Check(grpc::ServerContext*,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::health::v1::HealthCheckResponse* response) override {
    if (request->service() == "unknown") return {grpc::StatusCode::NOT_FOUND, "no such service"};
    response->set_status(request->service() == "loading"
                             ? grpc::health::v1::HealthCheckResponse::NOT_SERVING
                             : grpc::health::v1::HealthCheckResponse::SERVING);
    return grpc::Status::OK;
  }
};

struct CommandResult {
  int exit_code;
  std::string out;
  std::string err;
};

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    // No thread of the service may take the signal that the client waits for.
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
    address_ = "unix:" + dir_.path() + "/socket";
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
  }
  ~ClientTest() override { server_->Shutdown(); }

  CommandResult Run(std::vector<std::string> arguments, bool with_address = true) {
    CLI::App app;
    int exit_code = -1;
    RegisterGenerateCommand(app, &exit_code);
    RegisterModelCommand(app, &exit_code);
    RegisterHealthCommand(app, &exit_code);
    RegisterBenchCommand(app, &exit_code);
    if (with_address) arguments.push_back("--address=" + address_);
    std::reverse(arguments.begin(), arguments.end());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    try {
      app.parse(arguments);
    } catch (const CLI::ParseError& error) {
      std::cerr << error.what();
      exit_code = static_cast<int>(ClientExit::kUsage);
    }
    return {exit_code,
            ::testing::internal::GetCapturedStdout(),
            ::testing::internal::GetCapturedStderr()};
  }

  fixtures::TemporaryDir dir_;
  FakeService service_;
  FakeHealth health_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ClientTest, GenerateStreamsText) {
  const CommandResult result = Run({"generate", "hi", "--max-tokens=3"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "t0 t1 t2 \n");
  EXPECT_EQ(result.err, "");
}

TEST_F(ClientTest, GenerateShowsSequencesOneAfterTheOther) {
  EXPECT_EQ(Run({"generate", "hi", "--max-tokens=2", "--n=3"}).out,
            "t0 t1 \n--- sequence 1\nt0 t1 \n--- sequence 2\nt0 t1 \n");
}

TEST_F(ClientTest, GeneratePrintsEveryMessageAsJson) {
  const CommandResult result = Run({"generate", "hi", "--max-tokens=2", "--json"});
  std::istringstream lines(result.out);
  std::vector<nlohmann::json> messages;
  for (std::string line; std::getline(lines, line);)
    messages.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_TRUE(messages[0].contains("started"));
  EXPECT_EQ(messages[2]["delta"]["text"], "t1 ");
  EXPECT_EQ(messages[2]["delta"]["tokenIds"][0], 1);
  EXPECT_EQ(messages[3]["finished"]["reason"], "FINISH_REASON_LENGTH");
}

TEST_F(ClientTest, GenerateUnaryAndTokenIds) {
  EXPECT_EQ(Run({"generate", "hi", "--unary"}).out, "unary hi\n");
  EXPECT_EQ(Run({"generate", "hi", "--unary", "--print-token-ids"}).out, "11\n12\n");
  EXPECT_EQ(Run({"generate", "hi", "--omit-text", "--max-tokens=2"}).out, "0\n1\n");
  EXPECT_THAT(Run({"generate", "hi", "--max-tokens=2", "--stats"}).err,
              AllOf(HasSubstr("FINISH_REASON_LENGTH"), HasSubstr("2 completion tokens")));
}

TEST_F(ClientTest, GenerateReadsStandardInput) {
  std::istringstream input("from a pipe");
  std::streambuf* const original = std::cin.rdbuf(input.rdbuf());
  const CommandResult result = Run({"generate", "-", "--unary"});
  std::cin.rdbuf(original);
  EXPECT_EQ(result.out, "unary from a pipe\n");
}

TEST_F(ClientTest, FailuresHaveTheirExitCodes) {
  CommandResult result = Run({"generate", "refuse"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.err, "pagoda: INVALID_ARGUMENT: refused\n");
  // What came before a failure is shown.
  result = Run({"generate", "break", "--max-tokens=1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "t0 \n");
  EXPECT_THAT(result.err, HasSubstr("INTERNAL: broken"));
  EXPECT_EQ(Run({"generate", "slow", "--unary"}).exit_code, 5);
  EXPECT_EQ(Run({"generate"}).exit_code, 2);
  EXPECT_EQ(Run({"generate", "hi", "--no-such-flag"}).exit_code, 2);
  result =
      Run({"generate", "hi", "--address=unix:" + dir_.path() + "/nobody"}, /*with_address=*/false);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("/nobody"));
}

TEST_F(ClientTest, InterruptCancelsTheCall) {
  const CommandResult result = Run({"generate", "interrupt", "--max-tokens=1"});
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.err, "");
}

TEST_F(ClientTest, HealthExitsZeroOnlyWhenServing) {
  EXPECT_EQ(Run({"health"}).exit_code, 0);
  EXPECT_EQ(Run({"health"}).out, "SERVING\n");
  const CommandResult loading = Run({"health", "--service=loading"});
  EXPECT_EQ(loading.exit_code, 1);
  EXPECT_EQ(loading.out, "NOT_SERVING\n");
  EXPECT_EQ(Run({"health", "--service=unknown"}).exit_code, 3);
  EXPECT_EQ(Run({"health", "--address=unix:" + dir_.path() + "/nobody"}, false).exit_code, 4);
}

TEST_F(ClientTest, ModelIsDescribed) {
  EXPECT_THAT(Run({"model"}).out,
              AllOf(HasSubstr("fable"), HasSubstr("LlamaForCausalLM"), HasSubstr("320 tokens")));
  EXPECT_EQ(nlohmann::json::parse(Run({"model", "--json"}).out)["vocabSize"], 320);
  EXPECT_EQ(Run({"model", "--model=other"}).exit_code, 3);
}

TEST_F(ClientTest, BenchClosedLoop) {
  const std::string file = dir_.path() + "/report.json";
  const CommandResult result = Run({"bench",
                                    "--requests=20",
                                    "--concurrency=3",
                                    "--threads=2",
                                    "--channels=2",
                                    "--input-tokens=9",
                                    "--output-tokens=5",
                                    "--warmup=2",
                                    "--json=" + file});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(service_.num_streams(), 22);
  EXPECT_THAT(result.out, AllOf(HasSubstr("20 ok, 0 failed"), HasSubstr("TTFT"), HasSubstr("E2E")));
  std::ifstream in(file);
  const nlohmann::json report = nlohmann::json::parse(in);
  EXPECT_EQ(report["requests_ok"], 20);
  EXPECT_EQ(report["input_tokens"], 180);
  EXPECT_EQ(report["output_tokens"], 100);
  EXPECT_EQ(report["ttft_ms"]["count"], 20);
  EXPECT_EQ(report["itl_ms"]["count"], 80);
  EXPECT_EQ(report["load"]["concurrency"], 3);
  EXPECT_LE(report["mean_concurrency"], 3.0);
}

TEST_F(ClientTest, BenchOpenLoopAndFailures) {
  CommandResult result =
      Run({"bench", "--requests=10", "--rate=2000", "--output-tokens=2", "--warmup=0"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("10 ok"), HasSubstr("poisson at 2000.00 /s")));
  result = Run({"bench", "--requests=4", "--text=refuse", "--warmup=0"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("0 ok, 4 failed"), HasSubstr("error INVALID_ARGUMENT: 4")));
  EXPECT_EQ(Run({"bench", "--requests=0"}).exit_code, 2);
  EXPECT_EQ(Run({"bench", "--shared-prefix-tokens=500"}).exit_code, 2);
  EXPECT_EQ(Run({"bench", "--model=other"}).exit_code, 3);
}

TEST_F(ClientTest, BenchOfAFileOfPromptsWithReportsAndComparison) {
  const std::string prompts = dir_.path() + "/prompts.jsonl", page = dir_.path() + "/report.html";
  const std::string first = dir_.path() + "/first.json", second = dir_.path() + "/second.json";
  std::ofstream(prompts) << "{\"prompt\": \"a\", \"output_tokens\": 2}\n{\"prompt\": \"b\"}\n";
  CommandResult result = Run({"bench",
                              "--prompts=" + prompts,
                              "--requests=4",
                              "--arrival=at-once",
                              "--output-tokens=3",
                              "--warmup=0",
                              "--limit-ttft-ms=60000",
                              "--json=" + first,
                              "--report=" + page});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("all at once"), HasSubstr("4 within the limits")));
  std::ifstream in(first);
  const nlohmann::json report = nlohmann::json::parse(in);
  EXPECT_EQ(report["output_tokens"], 10);
  EXPECT_EQ(report["goodput"]["requests"], 4);
  EXPECT_TRUE(std::ifstream(page).good());
  ASSERT_EQ(Run({"bench", "--requests=2", "--warmup=0", "--json=" + second}).exit_code, 0);
  result = Run({"bench", "--compare", first, second});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("differs: requests: 4 and 2"), HasSubstr("TTFT p50 ms")));
  EXPECT_EQ(Run({"bench", "--compare", first, prompts}).exit_code, 2);
  EXPECT_EQ(Run({"bench", "--compare", first, "/nowhere"}).exit_code, 2);
  EXPECT_EQ(Run({"bench", "--prompts=/nowhere"}).exit_code, 2);
  EXPECT_EQ(Run({"bench", "--prompts=" + prompts, "--text=a"}).exit_code, 2);
  EXPECT_EQ(Run({"bench", "--arrival=at-once", "--rate=3"}).exit_code, 2);
}

TEST_F(ClientTest, InterruptEndsABench) {
  const CommandResult result =
      Run({"bench", "--requests=1000000", "--text=interrupt", "--concurrency=1", "--warmup=0"});
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.out, HasSubstr("error CANCELLED: 1"));
}

}  // namespace
}  // namespace pagoda::daemon
