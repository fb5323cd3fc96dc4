// Output constraints as a client meets them.

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"
#include "tests/fixtures/chain_model.h"
#include "tests/fixtures/context_model.h"

namespace pagoda::e2e::guided_test {
namespace {

using nlohmann::json;

constexpr const char* kSchema = R"({"type":"object","properties":{
  "name":{"type":"string","maxLength":6},"age":{"type":"integer","minimum":0,"maximum":150},
  "tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":2}},
  "required":["name","age"],"additionalProperties":false})";

std::unique_ptr<TestDaemon> StartOrDie(const std::string& model_dir,
                                       std::vector<std::string> flags) {
  auto daemon = TestDaemon::Start({.model_dir = model_dir, .flags = std::move(flags)});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  if (!daemon.ok()) std::abort();
  return *std::move(daemon);
}

v1::GenerateRequest SchemaRequest(uint64_t seed) {
  v1::GenerateRequest request = TextRequest("Tell me about a person: ", 200);
  request.mutable_sampling()->set_json_schema(kSchema);
  request.mutable_sampling()->set_temperature(1.0f);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

void ExpectPerson(const std::string& text) {
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(value.is_object()) << text;
  EXPECT_TRUE(value.at("name").is_string());
  EXPECT_GE(value.at("age").get<int>(), 0);
  EXPECT_LE(value.at("age").get<int>(), 150);
}

class Guided : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new fixtures::TemporaryDir(fixtures::WriteModelDir(fixtures::ContextModel({})));
    daemon_ = StartOrDie(model_->path(), {"--kv-cache-memory=32MiB"}).release();
  }
  static void TearDownTestSuite() {
    delete daemon_;
    delete model_;
  }
  static v1::InferenceService::Stub& stub() { return daemon_->stub(); }

  static inline fixtures::TemporaryDir* model_ = nullptr;
  static inline TestDaemon* daemon_ = nullptr;
};

TEST_F(Guided, EveryKindHolds) {
  const auto generate = [&](auto set) {
    v1::GenerateRequest request = TextRequest("x", 100);
    request.mutable_sampling()->set_seed(7);
    set(request.mutable_sampling());
    const CallResult result = Generate(stub(), request);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.first().finished.reason(), v1::FINISH_REASON_STOP);
    return result.first().text;
  };
  for (int seed = 0; seed < 20; ++seed) {
    const CallResult result = Generate(stub(), SchemaRequest(static_cast<uint64_t>(seed)));
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    ASSERT_EQ(result.first().finished.reason(), v1::FINISH_REASON_STOP);
    ExpectPerson(result.first().text);
  }
  EXPECT_THAT(generate([](auto* s) { s->set_regex("[ab]{3}-\\d"); }),
              ::testing::MatchesRegex("[ab][ab][ab]-[0-9]"));
  EXPECT_THAT(generate([](auto* s) { s->set_grammar("root ::= \"<\" [x-z]{2} \">\""); }),
              ::testing::MatchesRegex("<[xyz][xyz]>"));
  const std::string choice = generate([](auto* s) {
    s->mutable_choice()->add_choices("yes");
    s->mutable_choice()->add_choices("no");
  });
  EXPECT_TRUE(choice == "yes" || choice == "no") << choice;
}

// The same tokens alone, streamed, in a batch, beside siblings, and after the prefix is cached.
TEST_F(Guided, DependsOnTheSeedAlone) {
  const CallResult alone = Generate(stub(), SchemaRequest(5));
  ASSERT_TRUE(alone.status.ok());
  EXPECT_TRUE(StreamGenerate(stub(), SchemaRequest(5)).first().SameOutput(alone.first()));
  std::vector<CallResult> results(12);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      v1::GenerateRequest request = SchemaRequest(i);
      if (i % 3 == 2) request.mutable_sampling()->clear_constraint();
      results[i] = Generate(stub(), request);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const CallResult& result : results) ASSERT_TRUE(result.status.ok());
  v1::GenerateRequest siblings = SchemaRequest(3);
  siblings.mutable_output()->set_n(3);
  const CallResult three = Generate(stub(), siblings);
  ASSERT_EQ(three.sequences.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    ExpectPerson(three.sequences.at(i).text);
    EXPECT_TRUE(three.sequences.at(i).SameOutput(Generate(stub(), SchemaRequest(3 + i)).first()));
  }
}

TEST_F(Guided, PreemptionChangesNothing) {
  // Keys and values of the model: 2 layers, 2 heads of 64, float32 or what the device has.
  const int token_bytes = 2 * 2 * 2 * 64 * (IsExactDevice() ? 4 : 2);
  const auto tight = StartOrDie(model_->path(),
                                {IsExactDevice() ? "--block-size=4" : "--block-size=16",
                                 "--max-num-seqs=8",
                                 absl::StrCat("--kv-cache-memory=", 160 * token_bytes)});
  std::vector<CallResult> results(6);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = Generate(tight->stub(), SchemaRequest(100 + i)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_TRUE(results[i].status.ok()) << results[i].status.error_message();
    ExpectPerson(results[i].first().text);
    EXPECT_TRUE(results[i].first().SameOutput(Generate(stub(), SchemaRequest(100 + i)).first()));
  }
}

// EOS where the text may end but could go on; a stop string inside; min_tokens; ignore_eos.
TEST_F(Guided, EndsInEveryWay) {
  v1::GenerateRequest request = TextRequest("x", 64);
  request.mutable_sampling()->set_regex("(ab)*");
  request.mutable_sampling()->set_seed(1);
  const auto eos = static_cast<uint32_t>(fixtures::IdsOf({}).eos);
  (*request.mutable_sampling()->mutable_logit_bias())[eos] = 100;
  CallResult result = Generate(stub(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.first().text, "");
  EXPECT_EQ(result.first().finished.reason(), v1::FINISH_REASON_STOP);
  request.mutable_stopping()->set_min_tokens(5);
  result = Generate(stub(), request);
  EXPECT_EQ(result.first().text, "ababab");
  request.mutable_stopping()->clear_min_tokens();
  request.mutable_stopping()->set_ignore_eos(true);
  result = Generate(stub(), request);
  EXPECT_EQ(result.first().finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(result.first().token_ids.size(), 64u);
  request.mutable_stopping()->add_stop("ba");
  result = Generate(stub(), request);
  EXPECT_EQ(result.first().text, "a");
  EXPECT_EQ(result.first().finished.reason(), v1::FINISH_REASON_STOP_SEQUENCE);
}

TEST_F(Guided, WhatCannotFollowIsAnError) {
  v1::GenerateRequest request = TextRequest("x", 8);
  request.mutable_sampling()->set_regex("ab");
  request.mutable_sampling()->add_allowed_token_ids('a');
  const CallResult result = Generate(stub(), request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(result.status.error_message(), ::testing::HasSubstr("no token continues"));
}

// B047: refused with the position, at once, while others go on.
TEST_F(Guided, B047BrokenConstraintsAreRefused) {
  OpenStream other(stub(), [] {
    v1::GenerateRequest request = TextRequest("go on", 200);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }());
  ASSERT_TRUE(other.ReadFirstToken());
  const auto refused = [&](auto set, const char* field) {
    v1::GenerateRequest request = TextRequest("x", 8);
    set(request.mutable_sampling());
    const absl::Time start = absl::Now();
    const grpc::Status status = Generate(stub(), request).status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(3)) << field;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(FirstViolation(status), field);
  };
  refused([](auto* s) { s->set_regex("a**"); }, "sampling.regex");
  refused([](auto* s) { s->set_regex(std::string(50'000, '(')); }, "sampling.regex");
  refused([](auto* s) { s->set_json_schema(R"({"$ref":"#"})"); }, "sampling.json_schema");
  refused(
      [](auto* s) {
        s->set_json_schema(R"({"type":"integer","minimum":18446744073709551616,
                                              "maximum":1})");
      },
      "sampling.json_schema");
  refused([](auto* s) { s->set_grammar(""); }, "sampling.grammar");
  refused([](auto* s) { s->set_json_schema(""); }, "sampling.json_schema");
  refused([](auto* s) { s->set_json_object(false); }, "sampling.json_object");
  EXPECT_TRUE(other.Finish().ok());
  EXPECT_EQ(other.result.first().token_ids.size(), 200u);
}

}  // namespace
}  // namespace pagoda::e2e::guided_test
