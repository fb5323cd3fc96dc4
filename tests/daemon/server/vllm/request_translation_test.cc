#include "daemon/server/vllm/request_translation.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "daemon/server/convert_request.h"
#include "daemon/server/rpc_error.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/fake_model.h"

namespace pagoda::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

engine_pb::GenerateRequest ParseRequestText(const std::string& text) {
  engine_pb::GenerateRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  if (request.input_case() == engine_pb::GenerateRequest::INPUT_NOT_SET &&
      text.find("no input") == std::string::npos) {
    request.mutable_tokenized()->add_input_ids(7);
  }
  return request;
}

// All the way to what the engine gets, or what the client is told.
absl::StatusOr<ConvertedRequest> ToEngine(const engine_pb::GenerateRequest& request,
                                          const ServedModel& model) {
  auto translated = TranslateRequest(request, model);
  if (!translated.ok()) return translated.status();
  auto converted = ConvertRequest(
      *translated,
      model,
      CallOrigin{.key = engine::RequestKey(1), .stream = request.stream(), .drawn_seed = 42});
  if (!converted.ok()) return RestateError(converted.status());
  return converted;
}
absl::StatusOr<ConvertedRequest> ToEngine(const std::string& text) {
  return ToEngine(ParseRequestText(text), MakeFakeModel());
}

TEST(RequestTranslationTest, ZeroAndAbsentValuesAreNeutralWhateverTheModelSays) {
  ServedModel model = MakeFakeModel();
  model.generation.temperature = 0.5f;
  model.generation.top_p = 0.5f;
  model.generation.top_k = 3;
  model.generation.min_p = 0.1f;
  model.generation.typical_p = 0.5f;
  model.generation.repetition_penalty = 2.0f;
  for (const char* text : {"", "sampling_params {}"}) {
    const auto converted = ToEngine(ParseRequestText(text), model);
    ASSERT_TRUE(converted.ok()) << converted.status();
    const engine::Request& request = converted->request;
    EXPECT_EQ(request.sampling.temperature, 1.0f);
    EXPECT_EQ(request.sampling.top_p, 1.0f);
    EXPECT_EQ(request.sampling.top_k, 0);
    EXPECT_EQ(request.sampling.min_p, 0.0f);
    EXPECT_EQ(request.sampling.typical_p, 1.0f);
    EXPECT_EQ(request.sampling.repetition_penalty, 1.0f);
    EXPECT_EQ(request.sampling.seed, 42u);
    EXPECT_EQ(request.n, 1);
    EXPECT_EQ(request.stop.max_tokens, kFakeContext - 1);
    EXPECT_FALSE(request.sampling.num_logprobs.has_value());
    EXPECT_FALSE(request.want_text);
    EXPECT_FALSE(request.skip_special_tokens);
  }
}

TEST(RequestTranslationTest, EveryFieldArrives) {
  const auto converted = ToEngine(
      "request_id: 'r' tokenized { original_text: 'x' input_ids: [5, 6, 7] } stream: true "
      "data_parallel_rank: 0 kv_transfer_params_json: '' sampling_params { temperature: 0 "
      "top_p: 0.5 top_k: 4 min_p: 0.25 frequency_penalty: 1 presence_penalty: -1 "
      "repetition_penalty: 1.5 max_tokens: 9 min_tokens: 2 stop: 'ab' stop_token_ids: 33 "
      "skip_special_tokens: true spaces_between_special_tokens: true ignore_eos: true n: 2 "
      "logprobs: 3 prompt_logprobs: 0 seed: 11 include_stop_str_in_output: true "
      "logit_bias { key: 8 value: -5 } truncate_prompt_tokens: 2 "
      "grammar_from_first_token: true }");
  ASSERT_TRUE(converted.ok()) << converted.status();
  const engine::Request& request = converted->request;
  EXPECT_EQ(converted->started.request_id(), "r");
  EXPECT_THAT(request.prompt, ElementsAre(6, 7));
  EXPECT_EQ(request.sampling.temperature, 0.0f);
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 4);
  EXPECT_EQ(request.sampling.min_p, 0.25f);
  EXPECT_EQ(request.sampling.frequency_penalty, 1.0f);
  EXPECT_EQ(request.sampling.presence_penalty, -1.0f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling.seed, 11u);
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(Pair(8, -5.0f)));
  EXPECT_EQ(request.sampling.num_logprobs, 3);
  EXPECT_EQ(request.sampling.num_prompt_logprobs, 0);
  EXPECT_EQ(request.stop.max_tokens, 9);
  EXPECT_EQ(request.stop.min_tokens, 2);
  EXPECT_THAT(request.stop.stop_strings, ElementsAre("ab"));
  EXPECT_THAT(request.stop.stop_token_ids, ElementsAre(33));
  EXPECT_TRUE(request.stop.include_stop);
  EXPECT_TRUE(request.stop.ignore_eos);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.best_of, 2);
  EXPECT_TRUE(request.want_text);  // for the stop string
  EXPECT_TRUE(request.skip_special_tokens);
}

TEST(RequestTranslationTest, TextIsEncodedWithSpecialTokens) {
  const auto converted = ToEngine(ParseRequestText("text: 'hi'"), MakeFakeModel(true));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_THAT(converted->request.prompt, ElementsAre(kFakeBos, 'h', 'i'));
  const auto translated = TranslateRequest(ParseRequestText("text: '<s>'"), MakeFakeModel());
  EXPECT_TRUE(translated->prompt().parse_special_tokens());
}

TEST(RequestTranslationTest, ValuesWithAMeaningOfTheirOwn) {
  EXPECT_EQ(ToEngine("sampling_params { seed: -1 }")->request.sampling.seed, 42u);
  EXPECT_EQ(ToEngine("sampling_params { seed: -2 }")->request.sampling.seed, UINT64_MAX - 1);
  EXPECT_EQ(ToEngine("sampling_params { seed: 0 }")->request.sampling.seed, 0u);
  EXPECT_EQ(ToEngine("sampling_params { top_k: 4294967295 }")->request.sampling.top_k,
            std::numeric_limits<int32_t>::max());
  EXPECT_EQ(ToEngine("sampling_params { max_tokens: 0 }")->request.stop.max_tokens, 0);
  EXPECT_EQ(ToEngine("sampling_params { json_object: false }")->request.sampling.constraint,
            nullptr);
  engine_pb::GenerateRequest long_prompt =
      ParseRequestText("tokenized {} sampling_params { truncate_prompt_tokens: -1 }");
  for (int i = 0; i < 2 * kFakeContext; ++i) long_prompt.mutable_tokenized()->add_input_ids(9);
  const auto converted = ToEngine(long_prompt, MakeFakeModel());
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->request.prompt.size(), static_cast<size_t>(kFakeContext));
}

TEST(RequestTranslationTest, ConstraintsBecomeOurs) {
  const auto constraint = [](const std::string& text) {
    return TranslateRequest(ParseRequestText(text), MakeFakeModel())->sampling();
  };
  EXPECT_EQ(constraint("sampling_params { json_schema: '{}' }").json_schema(), "{}");
  EXPECT_EQ(constraint("sampling_params { regex: 'a+' }").regex(), "a+");
  EXPECT_EQ(constraint("sampling_params { grammar: 'root ::= \"a\"' }").grammar(),
            "root ::= \"a\"");
  EXPECT_TRUE(constraint("sampling_params { json_object: true }").json_object());
  EXPECT_THAT(constraint("sampling_params { choice { choices: ['a', 'b'] } }").choice().choices(),
              ElementsAre("a", "b"));
}

struct RefusedField {
  const char* request;
  const char* field;
};

TEST(RequestTranslationTest, ErrorsNameTheClientsFields) {
  const RefusedField kCases[] = {
      {"# no input", "input"},
      {"tokenized {}", "tokenized.input_ids"},
      {"tokenized { input_ids: [1, 300] }", "tokenized.input_ids[1]"},
      {"text: ''", "text"},
      {"mm_inputs {}", "mm_inputs"},
      {"extra_mm_inputs {}", "extra_mm_inputs"},
      {"media_refs {}", "media_refs"},
      {"kv_transfer_params {}", "kv_transfer_params"},
      {"kv_transfer_params_json: '{}'", "kv_transfer_params_json"},
      {"data_parallel_rank: 1", "data_parallel_rank"},
      {"data_parallel_rank: -1", "data_parallel_rank"},
      {"sampling_params { temperature: -1 }", "sampling_params.temperature"},
      {"sampling_params { temperature: nan }", "sampling_params.temperature"},
      {"sampling_params { top_p: nan }", "sampling_params.top_p"},
      {"sampling_params { top_p: 1.5 }", "sampling_params.top_p"},
      {"sampling_params { min_p: 2 }", "sampling_params.min_p"},
      {"sampling_params { frequency_penalty: inf }", "sampling_params.frequency_penalty"},
      {"sampling_params { presence_penalty: -3 }", "sampling_params.presence_penalty"},
      {"sampling_params { repetition_penalty: -1 }", "sampling_params.repetition_penalty"},
      {"sampling_params { max_tokens: 1 min_tokens: 2 }", "sampling_params.min_tokens"},
      {"sampling_params { stop: '' }", "sampling_params.stop[0]"},
      {"sampling_params { stop_token_ids: 999 }", "sampling_params.stop_token_ids[0]"},
      {"sampling_params { n: 100 }", "sampling_params.n"},
      {"sampling_params { logprobs: -1 }", "sampling_params.logprobs"},
      {"sampling_params { prompt_logprobs: 21 }", "sampling_params.prompt_logprobs"},
      {"sampling_params { logit_bias { key: -4 value: 1 } }", "sampling_params.logit_bias[-4]"},
      {"sampling_params { logit_bias { key: 4 value: 101 } }", "sampling_params.logit_bias[4]"},
      {"sampling_params { logit_bias { key: 999 } }", "sampling_params.logit_bias[999]"},
      {"sampling_params { truncate_prompt_tokens: 0 }", "sampling_params.truncate_prompt_tokens"},
      {"sampling_params { truncate_prompt_tokens: -2 }", "sampling_params.truncate_prompt_tokens"},
      {"sampling_params { structural_tag: '' }", "sampling_params.structural_tag"},
      {"sampling_params { json_schema: '' }", "sampling_params.json_schema"},
      {"sampling_params { regex: '(' }", "sampling_params.regex"},
      {"sampling_params { grammar: 'x' }", "sampling_params.grammar"},
      {"sampling_params { choice {} }", "sampling_params.choice"}};
  for (const RefusedField& c : kCases) {
    const auto converted = ToEngine(c.request);
    ASSERT_FALSE(converted.ok()) << c.request;
    EXPECT_EQ(converted.status().code(), absl::StatusCode::kInvalidArgument) << c.request;
    EXPECT_THAT(std::string(converted.status().message()),
                ::testing::StartsWith(absl::StrCat(c.field, ": ")));
    EXPECT_FALSE(ErrorReason(converted.status()).empty());
  }
}

TEST(RequestTranslationTest, DescriptionsSpeakTheClientsLanguage) {
  const auto converted = ToEngine("sampling_params { max_tokens: 1 min_tokens: 2 }");
  EXPECT_THAT(std::string(converted.status().message()),
              HasSubstr("sampling_params.max_tokens, 1"));
  EXPECT_EQ(RestateError(absl::UnavailableError("later")), absl::UnavailableError("later"));
  // Several at once, each in the details.
  const auto two = ToEngine("sampling_params { temperature: -1 stop_token_ids: 999 }");
  EXPECT_THAT(std::string(two.status().message()), HasSubstr("(and 1 more)"));
}

}  // namespace
}  // namespace pagoda::daemon
