// Bad requests: a clear error that names the field, at once, while another stream goes on
// undisturbed.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/context_model.h"

namespace pagoda::e2e::request_errors_test {
namespace {

using ::testing::HasSubstr;

// One daemon with a context of 256 for all cases, and a stream that runs across each.
class RequestErrors : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new fixtures::TemporaryDir(fixtures::WriteModelDir(fixtures::ContextModel({})));
    auto daemon =
        TestDaemon::Start({.model_dir = model_->path(), .flags = {"--max-model-len=256"}});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = daemon->release();
    other_ = new CallResult(Generate(daemon_->stub(), OtherRequest()));
    ASSERT_TRUE(other_->status.ok()) << other_->status.error_message();
  }
  static void TearDownTestSuite() {
    delete other_;
    delete daemon_;
    delete model_;
  }

  static v1::GenerateRequest OtherRequest() {
    v1::GenerateRequest request = IdsRequest({1, 2, 3, 4}, 100);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }

  RequestErrors() : stub_(daemon_->NewStub()), other_stream_(*stub_, OtherRequest()) {
    EXPECT_TRUE(other_stream_.ReadFirstToken());
  }
  // The neighbour is untouched, the daemon alive and back where it was.
  ~RequestErrors() override {
    EXPECT_TRUE(other_stream_.Finish().ok());
    EXPECT_TRUE(other_stream_.result.first().SameOutput(other_->first()));
    EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(10), [] {
      return daemon_->Metric("pagoda_requests_running").value_or(-1) == 0 &&
             daemon_->Metric("pagoda_kv_blocks{pool=\"0\",state=\"used\"}").value_or(-1) == 0;
    }));
  }

  grpc::Status Call(const v1::GenerateRequest& request) {
    const absl::Time start = absl::Now();
    const grpc::Status unary = Generate(*stub_, request, absl::Seconds(20)).status;
    const grpc::Status stream = StreamGenerate(*stub_, request, absl::Seconds(20)).status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    EXPECT_EQ(unary.error_code(), stream.error_code());
    return unary;
  }
  grpc::Status CallText(const std::string& text) {
    v1::GenerateRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
    if (!request.has_prompt()) request.mutable_prompt()->set_text("hello");
    return Call(request);
  }

  static fixtures::TemporaryDir* model_;
  static TestDaemon* daemon_;
  static CallResult* other_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  OpenStream other_stream_;
};
fixtures::TemporaryDir* RequestErrors::model_ = nullptr;
TestDaemon* RequestErrors::daemon_ = nullptr;
CallResult* RequestErrors::other_ = nullptr;

struct BadField {
  const char* request;
  const char* field;
};

TEST_F(RequestErrors, EveryFieldOutOfItsRange) {
  const BadField kCases[] = {
      {"sampling { temperature: -1 }", "sampling.temperature"},
      {"sampling { temperature: nan }", "sampling.temperature"},
      {"sampling { top_p: 0 }", "sampling.top_p"},
      {"sampling { top_p: 1.5 }", "sampling.top_p"},
      {"sampling { top_k: -2 }", "sampling.top_k"},
      {"sampling { min_p: 2 }", "sampling.min_p"},
      {"sampling { typical_p: 0 }", "sampling.typical_p"},
      {"sampling { repetition_penalty: 0 }", "sampling.repetition_penalty"},
      {"sampling { repetition_penalty: 11 }", "sampling.repetition_penalty"},
      {"sampling { frequency_penalty: 3 }", "sampling.frequency_penalty"},
      {"sampling { presence_penalty: -3 }", "sampling.presence_penalty"},
      {"sampling { bad_words: '' }", "sampling.bad_words[0]"},
      {"stopping { max_tokens: 1 min_tokens: 2 }", "stopping.min_tokens"},
      {"stopping { stop: '' }", "stopping.stop[0]"},
      {"output { n: 0 }", "output.n"},
      {"output { n: 100000 }", "output.n"},
      {"output { n: 2 best_of: 1 }", "output.best_of"},
      {"output { logprobs_mode: 7 }", "output.logprobs_mode"},
      {"prompt { text: 'a' truncate_prompt_tokens: 0 }", "prompt.truncate_prompt_tokens"},
      {"prompt { text: 'a' truncate_prompt_tokens: 257 }", "prompt.truncate_prompt_tokens"},
      {"prompt {}", "prompt"}};
  for (const BadField& c : kCases) {
    const grpc::Status status = CallText(c.request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.request;
    EXPECT_EQ(FirstViolation(status), c.field) << c.request;
    EXPECT_THAT(status.error_message(), HasSubstr(c.field));
    EXPECT_FALSE(HasRetryInfo(status));
  }
}

TEST_F(RequestErrors, B029LogitBias) {
  const BadField kCases[] = {
      {"sampling { logit_bias { key: 320 value: 5 } }", "sampling.logit_bias[320]"},
      {"sampling { logit_bias { key: 4294967295 value: 5 } }", "sampling.logit_bias[4294967295]"},
      {"sampling { logit_bias { key: 3 value: 1e9 } }", "sampling.logit_bias[3]"},
      {"sampling { logit_bias { key: 3 value: nan } }", "sampling.logit_bias[3]"}};
  for (const BadField& c : kCases)
    EXPECT_EQ(FirstViolation(CallText(c.request)), c.field) << c.request;
}

TEST_F(RequestErrors, B036EmptyPrompt) {
  for (const char* prompt : {"prompt { text: '' }", "prompt { token_ids {} }"}) {
    const grpc::Status status = CallText(prompt);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << prompt;
    EXPECT_THAT(status.error_message(), HasSubstr("no tokens"));
  }
  EXPECT_TRUE(CallText("prompt { text: 'a' } stopping { max_tokens: 1 }").ok());
}

TEST_F(RequestErrors, B037TokenIdsEverywhere) {
  const BadField kCases[] = {
      {"prompt { token_ids { ids: 320 } }", "prompt.token_ids.ids[0]"},
      {"prompt { token_ids { ids: [1, 2147483648] } }", "prompt.token_ids.ids[1]"},
      {"prompt { token_ids { ids: 4294967295 } }", "prompt.token_ids.ids[0]"},
      // Between the tokenizer's ids and the padded embedding.
      {"prompt { token_ids { ids: 319 } }", "prompt.token_ids.ids[0]"},
      {"stopping { stop_token_ids: 320 }", "stopping.stop_token_ids[0]"},
      {"sampling { allowed_token_ids: 320 }", "sampling.allowed_token_ids[0]"}};
  for (const BadField& c : kCases) {
    const grpc::Status status = CallText(c.request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.request;
    EXPECT_EQ(FirstViolation(status), c.field) << c.request;
  }
}

TEST_F(RequestErrors, B038CountsOfLogprobs) {
  for (const char* count : {"-1", "21", "320", "321", "2000000000"}) {
    for (const char* field : {"logprobs", "prompt_logprobs"}) {
      const grpc::Status status = CallText(absl::StrCat("output { ", field, ": ", count, " }"));
      EXPECT_EQ(FirstViolation(status), absl::StrCat("output.", field)) << count;
    }
  }
  v1::GenerateRequest request = TextRequest("the inner", 2);
  request.mutable_output()->set_logprobs(20);
  request.mutable_output()->set_prompt_logprobs(0);
  const CallResult at_cap = Generate(*stub_, request);
  ASSERT_TRUE(at_cap.status.ok()) << at_cap.status.error_message();
  EXPECT_EQ(at_cap.first().logprobs.at(0).top_size(), 20);
  EXPECT_EQ(at_cap.first().logprobs.at(0).token().rank(), 1u);  // greedy
  EXPECT_EQ(at_cap.prompt_logprobs.size(), at_cap.started.prompt_tokens());
  EXPECT_EQ(at_cap.prompt_logprobs.at(1).top_size(), 0);
}

TEST_F(RequestErrors, B041PromptOnlyScoring) {
  v1::GenerateRequest request = TextRequest("the inner", 0);
  request.mutable_output()->set_echo(true);
  request.mutable_output()->set_logprobs(1);
  request.mutable_output()->set_n(2);
  request.mutable_stopping()->add_stop("x");
  for (int pass = 0; pass < 2; ++pass) {
    for (const CallResult& result : {Generate(*stub_, request), StreamGenerate(*stub_, request)}) {
      ASSERT_TRUE(result.status.ok()) << result.status.error_message();
      EXPECT_EQ(result.prompt_logprobs.size(), result.started.prompt_tokens());
      EXPECT_FALSE(result.prompt_logprobs.at(0).token().has_logprob());
      EXPECT_EQ(result.prompt_logprobs.at(1).top_size(), 1);
      ASSERT_EQ(result.sequences.size(), 2u);
      for (const auto& [index, sequence] : result.sequences) {
        EXPECT_EQ(sequence.text, "the inner");
        EXPECT_TRUE(sequence.token_ids.empty());
        EXPECT_EQ(sequence.finished.reason(), v1::FINISH_REASON_LENGTH);
        EXPECT_EQ(sequence.finished.usage().completion_tokens(), 0u);
      }
    }
  }
}

TEST_F(RequestErrors, B042ContextLimit) {
  const auto call = [&](int length, absl::optional<uint32_t> max_tokens) {
    v1::GenerateRequest request =
        IdsRequest(std::vector<uint32_t>(static_cast<size_t>(length), 7), 0);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_stopping()->clear_max_tokens();
    if (max_tokens) request.mutable_stopping()->set_max_tokens(*max_tokens);
    return Generate(*stub_, request);
  };
  for (const int length : {254, 255, 256}) {
    for (const absl::optional<uint32_t> max_tokens : {absl::optional<uint32_t>(1),
                                                      absl::optional<uint32_t>(2),
                                                      absl::optional<uint32_t>(5),
                                                      absl::optional<uint32_t>()}) {
      const CallResult result = call(length, max_tokens);
      ASSERT_TRUE(result.status.ok()) << result.status.error_message();
      const uint32_t expected =
          std::min(max_tokens.value_or(1000), static_cast<uint32_t>(256 - length));
      EXPECT_EQ(result.first().token_ids.size(), expected) << length;
      EXPECT_EQ(result.first().finished.reason(), v1::FINISH_REASON_LENGTH);
      EXPECT_EQ(result.started.stopping().max_tokens(), expected);
    }
  }
  for (const int length : {257, 1000}) {
    const CallResult result = call(length, 1);
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(result.status.error_message(), HasSubstr(absl::StrCat(length)));
    EXPECT_THAT(result.status.error_message(), HasSubstr("256"));
    EXPECT_EQ(ErrorReason(result.status), "PROMPT_TOO_LONG");
  }
  // A text so long that nobody would want it tokenised first.
  const CallResult huge = Generate(*stub_, TextRequest(std::string(5 << 20, 'x'), 1));
  EXPECT_EQ(huge.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RequestErrors, UnknownModel) {
  const grpc::Status unknown = CallText("model: 'gpt-17'");
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ErrorReason(unknown), "MODEL_NOT_FOUND");
}

TEST_F(RequestErrors, B016InvalidUtf8) {
  const google::protobuf::LogSilencer silencer;
  const std::string bad = "\xff\xfe";
  v1::GenerateRequest prompt = TextRequest(bad, 1), model = TextRequest("a", 1),
                      stop = TextRequest("a", 1);
  model.set_model(bad);
  stop.mutable_stopping()->add_stop(bad);
  for (const auto& [request, field] : std::vector<std::pair<v1::GenerateRequest, const char*>>{
           {prompt, "prompt.text"}, {model, "model"}, {stop, "stopping.stop[0]"}}) {
    const grpc::Status status = Generate(*stub_, request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(FirstViolation(status), field);
    EXPECT_FALSE(absl::StrContains(status.error_message(), bad));
  }
  // A NUL is a byte like others.
  const CallResult nul = Generate(*stub_, TextRequest(std::string("a\0b", 3), 1));
  EXPECT_TRUE(nul.status.ok()) << nul.status.error_message();
  EXPECT_EQ(nul.started.prompt_tokens(), 3u);
}

TEST_F(RequestErrors, B043MessageSizes) {
  // The default limit of received messages is 64 MiB.
  const auto call = [&](size_t message_bytes) {
    v1::GenerateRequest request = TextRequest(std::string(64 << 20, 'x'), 1);
    std::string* const text = request.mutable_prompt()->mutable_text();
    text->resize(text->size() + message_bytes - request.ByteSizeLong());
    EXPECT_EQ(request.ByteSizeLong(), message_bytes);
    return Generate(*stub_, request).status;
  };
  for (const int more : {-1, 0}) {
    const grpc::Status within = call((64 << 20) + more);
    EXPECT_EQ(within.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << within.error_message();
  }
  const grpc::Status over = call((64 << 20) + 1);
  EXPECT_EQ(over.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(over.error_message(), HasSubstr("67108864"));
}

// A quarter of a megabyte that inflates to 256.
TEST_F(RequestErrors, B105CompressedBomb) {
  const auto call = [&](const std::string& prompt) {
    grpc::ClientContext context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    v1::GenerateResponse response;
    return stub_->Generate(&context, TextRequest(prompt, 1), &response);
  };
  EXPECT_TRUE(call(std::string(200, 'x')).ok());
  const double before = daemon_->Metric("process_resident_memory_bytes").value_or(0);
  const grpc::Status status = call(std::string(256 << 20, '0'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("67108864"));
  EXPECT_LT(daemon_->Metric("process_resident_memory_bytes").value_or(1e12) - before, 150e6);
}

TEST_F(RequestErrors, B046RequestIds) {
  v1::GenerateRequest request = OtherRequest();
  request.set_request_id("mine");
  OpenStream first(*stub_, request);
  ASSERT_TRUE(first.ReadFirstToken());
  EXPECT_EQ(Generate(*stub_, request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  request.set_request_id("another\nline");
  OpenStream second(*stub_, request);
  ASSERT_TRUE(second.ReadFirstToken());
  // Cancelling one leaves the other.
  first.Cancel();
  EXPECT_EQ(first.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(second.Finish().ok());
  EXPECT_EQ(second.result.started.request_id(), "another\nline");
  EXPECT_TRUE(second.result.first().SameOutput(other_->first()));
  request.set_request_id(std::string(1 << 20, 'i'));
  EXPECT_EQ(FirstViolation(Generate(*stub_, request).status), "request_id");
  // An id is free as soon as its call has ended.
  request = TextRequest("a", 1);
  request.set_request_id("again");
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Generate(*stub_, request).status.ok());
}

}  // namespace
}  // namespace pagoda::e2e::request_errors_test
