#include "daemon/client/generate_flags.h"

#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "tests/fixtures/model_files.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<v1::GenerateRequest> Parse(std::vector<std::string> arguments) {
  CLI::App app;
  GenerateFlags flags;
  AddGenerateFlags(app, &flags);
  try {
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(std::string("parse: ") + error.what());
  }
  v1::GenerateRequest request;
  const absl::Status status = BuildRequest(flags, &request);
  if (!status.ok()) return status;
  v1::StreamGenerateRequest stream_request;
  EXPECT_TRUE(BuildRequest(flags, &stream_request).ok());
  // The two requests have the same fields by number.
  v1::GenerateRequest same;
  EXPECT_TRUE(same.ParseFromString(stream_request.SerializeAsString()));
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(same, request));
  return request;
}

void ExpectRequest(const std::vector<std::string>& arguments, const std::string& text) {
  const auto request = Parse(arguments);
  ASSERT_TRUE(request.ok()) << request.status();
  v1::GenerateRequest expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &expected));
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*request, expected))
      << request->DebugString();
}

const std::string kEmptyRest = " sampling {} stopping {} output {}";

TEST(GenerateFlags, WhatIsAbsentStaysAbsent) {
  ExpectRequest({"hi"}, "prompt { text: 'hi' }" + kEmptyRest);
  ExpectRequest({"--token-ids", "1,2,3"}, "prompt { token_ids { ids: [1, 2, 3] } }" + kEmptyRest);
  ExpectRequest({"--token-ids=7", "--token-ids=8"},
                "prompt { token_ids { ids: [7, 8] } }" + kEmptyRest);
}

TEST(GenerateFlags, ZeroIsPresent) {
  ExpectRequest({"hi",
                 "--temperature=0",
                 "--seed=0",
                 "--top-k=-1",
                 "--max-tokens=0",
                 "--logprobs=0",
                 "--min-p=0"},
                "prompt { text: 'hi' } sampling { temperature: 0 seed: 0 top_k: -1 min_p: 0 } "
                "stopping { max_tokens: 0 } "
                "output { logprobs: 0 }");
}

TEST(GenerateFlags, EverySamplingField) {
  ExpectRequest({"--temperature",
                 "0.5",
                 "--top-p",
                 "0.9",
                 "--top-k",
                 "40",
                 "--min-p",
                 "0.1",
                 "--typical-p",
                 "0.8",
                 "--repetition-penalty",
                 "1.1",
                 "--frequency-penalty",
                 "-1.5",
                 "--presence-penalty",
                 "-0.5",
                 "--seed",
                 "18446744073709551615",
                 "--logit-bias",
                 "5=-100,6=2.5",
                 "--logit-bias",
                 "7=1",
                 "--allowed-token-ids",
                 "5,6",
                 "--bad-word",
                 "foo bar",
                 "--bad-word",
                 "baz",
                 "--json-schema",
                 "{}",
                 "--beam-width",
                 "3",
                 "--length-penalty",
                 "2",
                 "--early-stopping",
                 "--ngram-draft-tokens",
                 "4",
                 "hi"},
                R"(prompt { text: 'hi' } stopping {} output {}
                   sampling { temperature: 0.5 top_p: 0.9 top_k: 40 min_p: 0.1 typical_p: 0.8 repetition_penalty: 1.1
                     frequency_penalty: -1.5 presence_penalty: -0.5 seed: 18446744073709551615
                     logit_bias { key: 5 value: -100 } logit_bias { key: 6 value: 2.5 } logit_bias { key: 7 value: 1 }
                     allowed_token_ids: [5, 6] bad_words: ['foo bar', 'baz'] json_schema: '{}'
                     beam_search { width: 3 length_penalty: 2 early_stopping: true }
                     ngram_speculation { max_draft_tokens: 4 } })");
}

TEST(GenerateFlags, EveryConstraint) {
  const auto expect = [](const std::vector<std::string>& flags, const std::string& sampling) {
    std::vector<std::string> arguments = {"hi"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ExpectRequest(arguments,
                  "prompt { text: 'hi' } stopping {} output {} sampling { " + sampling + " }");
  };
  expect({"--json-object"}, "json_object: true");
  expect({"--regex", "[ab]+"}, "regex: '[ab]+'");
  expect({"--grammar", "root ::= 'a'"}, "grammar: \"root ::= 'a'\"");
  expect({"--choice", "yes", "--choice", "no"}, "choice { choices: ['yes', 'no'] }");
  const fixtures::TemporaryDir dir;
  dir.Write("schema.json", "{\"type\":\"object\"}");
  expect({"--json-schema", "@" + dir.path() + "/schema.json"},
         "json_schema: '{\"type\":\"object\"}'");
}

TEST(GenerateFlags, EveryOtherField) {
  ExpectRequest(
      {"--max-tokens",
       "9",
       "--min-tokens",
       "2",
       "--stop",
       "a",
       "--stop",
       "b, c",
       "--stop-token-ids",
       "1,2",
       "--include-stop",
       "--ignore-eos",
       "hi"},
      R"(prompt { text: 'hi' } sampling {} output {} stopping { max_tokens: 9 min_tokens: 2 stop: ['a', 'b, c']
                   stop_token_ids: [1, 2] include_stop: true ignore_eos: true })");
  ExpectRequest(
      {"--n",
       "2",
       "--best-of",
       "3",
       "--logprobs",
       "5",
       "--prompt-logprobs",
       "1",
       "--logprobs-mode",
       "processed",
       "--echo",
       "--keep-special-tokens",
       "--omit-text",
       "hi"},
      R"(prompt { text: 'hi' } sampling {} stopping {} output { n: 2 best_of: 3 logprobs: 5 prompt_logprobs: 1
                   logprobs_mode: LOGPROBS_MODE_PROCESSED echo: true skip_special_tokens: false omit_text: true })");
  ExpectRequest(
      {"--request-id",
       "r",
       "--model",
       "m",
       "--priority",
       "-3",
       "--cache-salt",
       "s",
       "--no-special-tokens",
       "--parse-special-tokens",
       "--truncate-prompt-tokens",
       "4",
       "hi"},
      R"(request_id: 'r' model: 'm' priority: -3 cache_salt: 's' sampling {} stopping {} output {}
                   prompt { text: 'hi' add_special_tokens: false parse_special_tokens: true truncate_prompt_tokens: 4 })");
}

TEST(GenerateFlags, ChatFromFlagsAndFiles) {
  ExpectRequest({"--chat", "hi", "--system", "be kind", "--no-generation-prompt"},
                R"(prompt { chat { messages { role: 'system' content { text: 'be kind' } }
                   messages { role: 'user' content { text: 'hi' } } add_generation_prompt: false } })" +
                    kEmptyRest);
  const fixtures::TemporaryDir dir;
  dir.Write("messages.json", R"([{"role": "user", "content": "a", "name": "ann"},
      {"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}])");
  dir.Write("tools.json", "[]");
  ExpectRequest(
      {"--messages", dir.path() + "/messages.json", "--tools", dir.path() + "/tools.json"},
      R"(prompt { chat { messages { role: 'user' name: 'ann' content { text: 'a' } }
                   messages { role: 'assistant' content { text: 'b' } content { text: 'c' } } tools_json: '[]' } })" +
          kEmptyRest);
}

TEST(GenerateFlags, WhatCannotBeSentIsNamed) {
  const fixtures::TemporaryDir dir;
  dir.Write("object.json", "{}");
  dir.Write("norole.json", "[{\"content\": \"x\"}]");
  const std::pair<std::vector<std::string>, const char*> kCases[] = {
      {{}, "PROMPT"},
      {{"hi", "--token-ids", "1"}, "PROMPT"},
      {{"--token-ids", "1", "--chat"}, "PROMPT"},
      {{"\xFF"}, "PROMPT: not valid UTF-8"},
      {{"hi", "--logit-bias", "5"}, "--logit-bias: \"5\" is not ID=VALUE"},
      {{"hi", "--logit-bias", "-5=1"}, "--logit-bias"},
      {{"hi", "--regex", "a", "--json-object"}, "only one"},
      {{"hi", "--length-penalty", "1"}, "--beam-width"},
      {{"hi", "--json-schema", "@/no/such"}, "--json-schema: cannot read /no/such"},
      {{"--messages", dir.path() + "/object.json"}, "holds no JSON list"},
      {{"--messages", dir.path() + "/norole.json"}, "needs \"role\""},
      {{"hi", "--temperature", "warm"}, "parse: "},
      {{"hi", "--seed", "-1"}, "parse: "},
      {{"hi", "--token-id", "1"}, "parse: "},
      {{"hi", "--logprobs-mode", "cooked"}, "parse: "},
      {{"hi", "there"}, "parse: "},
  };
  for (const auto& [arguments, message] : kCases) {
    const auto request = Parse(arguments);
    EXPECT_FALSE(request.ok()) << message;
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace pagoda::daemon
