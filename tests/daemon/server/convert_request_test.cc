#include "daemon/server/convert_request.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "daemon/server/rpc_error.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/fake_model.h"

namespace pagoda::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

v1::GenerateRequest Parse(const std::string& text) {
  v1::GenerateRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

v1::StreamGenerateRequest AsStream(const v1::GenerateRequest& request) {
  v1::StreamGenerateRequest stream;
  EXPECT_TRUE(stream.ParseFromString(request.SerializeAsString()));  // equal field by field
  return stream;
}

const CallOrigin kUnary = {.key = engine::RequestKey(7), .arrival_ns = 5};

absl::StatusOr<ConvertedRequest> Convert(const std::string& text,
                                         const ServedModel& model = MakeFakeModel()) {
  CallOrigin origin = kUnary;
  origin.made_request_id = "made";
  origin.drawn_seed = 42;
  return ConvertRequest(Parse(text), model, origin);
}

// ---- Presence

TEST(ConvertRequestTest, AbsentFieldsAreNeutralWithoutModelDefaults) {
  const auto converted = Convert("prompt { text: 'hi' }");
  ASSERT_TRUE(converted.ok()) << converted.status();
  const engine::Request& request = converted->request;
  EXPECT_EQ(request.key, engine::RequestKey(7));
  EXPECT_THAT(request.prompt, ElementsAre('h', 'i'));
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.min_p, 0.0f);
  EXPECT_EQ(request.sampling.typical_p, 1.0f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(request.sampling.seed, 42u);
  EXPECT_FALSE(request.sampling.num_logprobs.has_value());
  EXPECT_EQ(request.stop.max_tokens, kFakeContext - 2);
  EXPECT_THAT(request.stop.eos_token_ids, ElementsAre(kFakeEos));
  EXPECT_EQ(request.n, 1);
  EXPECT_TRUE(request.want_text);
}

TEST(ConvertRequestTest, AbsentFieldsTakeTheModelsDefaults) {
  ServedModel model = MakeFakeModel();
  model.generation.temperature = 0.6f;
  model.generation.top_p = 0.9f;
  model.generation.top_k = 50;
  model.generation.repetition_penalty = 1.1f;
  const auto absent = Convert("prompt { text: 'hi' }", model);
  ASSERT_TRUE(absent.ok());
  EXPECT_EQ(absent->request.sampling.temperature, 0.6f);
  EXPECT_EQ(absent->request.sampling.top_p, 0.9f);
  EXPECT_EQ(absent->request.sampling.top_k, 50);
  EXPECT_EQ(absent->request.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(absent->started.sampling().temperature(), 0.6f);
  // Present means exactly that value, zero included.
  const auto present = Convert(
      "prompt { text: 'hi' } sampling { temperature: 0 top_p: 1 top_k: -1 seed: 0 }", model);
  ASSERT_TRUE(present.ok());
  EXPECT_EQ(present->request.sampling.temperature, 0.0f);
  EXPECT_EQ(present->request.sampling.top_p, 1.0f);
  EXPECT_EQ(present->request.sampling.top_k, 0);
  EXPECT_EQ(present->request.sampling.seed, 0u);
}

TEST(ConvertRequestTest, DoSampleFalseIsGreedyUnlessTheRequestSaysOtherwise) {
  ServedModel model = MakeFakeModel();
  model.generation.do_sample = false;
  model.generation.temperature = 0.6f;
  EXPECT_EQ(Convert("prompt { text: 'hi' }", model)->request.sampling.temperature, 0.0f);
  EXPECT_EQ(Convert("prompt { text: 'hi' } sampling { temperature: 0.5 }", model)
                ->request.sampling.temperature,
            0.5f);
}

TEST(ConvertRequestTest, StartedEchoesWhatIsInForce) {
  const auto converted = Convert(
      "request_id: 'mine' model: 'alias' prompt { text: 'hello' } sampling { top_k: 3 } "
      "stopping { max_tokens: 1000 stop: 'x' } output { n: 2 logprobs: 4 echo: true }");
  ASSERT_TRUE(converted.ok()) << converted.status();
  const v1::Started& started = converted->started;
  EXPECT_EQ(started.request_id(), "mine");
  EXPECT_EQ(started.model(), "fake");
  EXPECT_EQ(started.sampling().top_k(), 3);
  EXPECT_EQ(started.sampling().temperature(), 1.0f);
  EXPECT_EQ(started.sampling().seed(), 42u);
  EXPECT_EQ(started.stopping().max_tokens(), static_cast<uint32_t>(kFakeContext - 5));
  EXPECT_THAT(started.stopping().stop(), ElementsAre("x"));
  EXPECT_EQ(started.output().n(), 2u);
  EXPECT_EQ(started.output().best_of(), 2u);
  EXPECT_EQ(started.output().prompt_logprobs(), 4);  // echo asks for them
  EXPECT_EQ(started.output().logprobs_mode(), v1::LOGPROBS_MODE_RAW);
  EXPECT_EQ(converted->echo_text, "hello");
}

TEST(ConvertRequestTest, StreamAndUnaryMeanTheSame) {
  const v1::GenerateRequest message = Parse(
      "prompt { token_ids { ids: [1, 2] } } sampling { temperature: 0.5 } priority: -3 cache_salt: "
      "'s'");
  CallOrigin origin = kUnary;
  origin.stream = true;
  const auto stream = ConvertRequest(AsStream(message), MakeFakeModel(), origin);
  ASSERT_TRUE(stream.ok());
  EXPECT_THAT(stream->request.prompt, ElementsAre(1, 2));
  EXPECT_EQ(stream->request.sampling.temperature, 0.5f);
  EXPECT_EQ(stream->request.priority, -3);
  EXPECT_EQ(stream->request.cache_salt, "s");
}

// ---- Prompt and context

TEST(ConvertRequestTest, BadWordsAreEncodedWithAndWithoutASpace) {
  const auto converted = Convert("prompt { text: 'hi' } sampling { bad_words: ['ab', ' c'] }");
  ASSERT_TRUE(converted.ok());
  EXPECT_THAT(converted->request.sampling.bad_words,
              ElementsAre(ElementsAre('a', 'b'),
                          ElementsAre(' ', 'a', 'b'),
                          ElementsAre('c'),
                          ElementsAre(' ', 'c')));
}

TEST(ConvertRequestTest, TruncationKeepsTheLastTokensAndEchoesThem) {
  const auto converted =
      Convert("prompt { text: 'abcdef' truncate_prompt_tokens: 2 } output { echo: true }");
  ASSERT_TRUE(converted.ok());
  EXPECT_THAT(converted->request.prompt, ElementsAre('e', 'f'));
  EXPECT_EQ(converted->echo_text, "ef");
  EXPECT_TRUE(
      Convert("prompt { text: '" + std::string(100, 'x') + "' truncate_prompt_tokens: 5 }").ok());
}

TEST(ConvertRequestTest, SpecialTokensAreSkippedInTheEchoedPrompt) {
  const std::string ids = "prompt { token_ids { ids: [256, 104] } } output { echo: true ";
  EXPECT_EQ(Convert(ids + "}")->echo_text, "h");
  EXPECT_EQ(Convert(ids + "skip_special_tokens: false }")->echo_text, "<s>h");
}

TEST(ConvertRequestTest, B036EmptyPrompt) {
  for (const char* prompt : {"text: ''", "token_ids {}"}) {
    const auto converted = Convert(std::string("prompt { ") + prompt + " }");
    ASSERT_TRUE(absl::IsInvalidArgument(converted.status())) << prompt;
    EXPECT_THAT(std::string(converted.status().message()), HasSubstr("holds no tokens"));
  }
  // A tokenizer that adds BOS makes one token of nothing.
  EXPECT_THAT(Convert("prompt { text: '' }", MakeFakeModel(/*adds_bos=*/true))->request.prompt,
              ElementsAre(kFakeBos));
  EXPECT_TRUE(absl::IsInvalidArgument(Convert("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Convert("prompt {}").status()));
}

TEST(ConvertRequestTest, B042ContextLimit) {
  const auto with = [](int length, const std::string& rest) {
    return Convert("prompt { text: '" + std::string(length, 'x') + "' } " + rest);
  };
  EXPECT_EQ(with(30, "stopping { max_tokens: 1 }")->request.stop.max_tokens, 1);
  EXPECT_EQ(with(30, "stopping { max_tokens: 5 }")->request.stop.max_tokens, 2);
  EXPECT_EQ(with(31, "")->request.stop.max_tokens, 1);
  // A prompt that fills the context is answered with prompt information only.
  EXPECT_EQ(with(32, "stopping { max_tokens: 5 }")->request.stop.max_tokens, 0);
  for (const int length : {33, 1000}) {
    const auto converted = with(length, "");
    ASSERT_TRUE(absl::IsInvalidArgument(converted.status()));
    EXPECT_THAT(std::string(converted.status().message()), HasSubstr(std::to_string(length)));
    EXPECT_THAT(std::string(converted.status().message()), HasSubstr("32"));
    EXPECT_EQ(ErrorReason(converted.status()), "PROMPT_TOO_LONG");
  }
}

TEST(ConvertRequestTest, WithoutTokenizerOnlyIdsAreServed) {
  ServedModel model = MakeFakeModel();
  model.tokenizer = nullptr;
  DeriveModelFacts(&model);
  const auto converted = Convert("prompt { token_ids { ids: [271] } }", model);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_FALSE(converted->request.want_text);
  EXPECT_TRUE(converted->started.output().omit_text());
  EXPECT_TRUE(absl::IsInvalidArgument(Convert("prompt { text: 'a' }", model).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Convert("prompt { token_ids { ids: 1 } } stopping { stop: 'a' }", model).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Convert("prompt { token_ids { ids: 1 } } sampling { bad_words: 'a' }", model).status()));
}

TEST(ConvertRequestTest, StopStringsAreMatchedEvenWhenNoTextIsReturned) {
  const auto converted =
      Convert("prompt { text: 'a' } stopping { stop: 'x' } output { omit_text: true echo: true }");
  ASSERT_TRUE(converted.ok());
  EXPECT_TRUE(converted->request.want_text);
  EXPECT_THAT(converted->echo_text, IsEmpty());
  EXPECT_FALSE(Convert("prompt { text: 'a' } output { omit_text: true }")->request.want_text);
}

TEST(ConvertRequestTest, B043ReplyThatCannotFitIsRefusedUpFront) {
  ServedModel model = MakeFakeModel();
  model.max_context_tokens = 100000;
  const std::string request =
      "prompt { text: 'hi' } stopping { max_tokens: 8000 } output { logprobs: 20 }";
  const auto unary = Convert(request, model);
  ASSERT_TRUE(absl::IsInvalidArgument(unary.status()));
  EXPECT_THAT(std::string(unary.status().message()), HasSubstr("output.logprobs"));
  EXPECT_THAT(std::string(unary.status().message()), HasSubstr("StreamGenerate"));
  CallOrigin origin = kUnary;
  origin.stream = true;
  EXPECT_TRUE(ConvertRequest(AsStream(Parse(request)), model, origin).ok());
}

// ---- Every field out of range: INVALID_ARGUMENT that names it

struct BadField {
  const char* fields;
  const char* path;
};

void PrintTo(const BadField& bad, std::ostream* out) { *out << bad.fields; }

class BadFieldTest : public ::testing::TestWithParam<BadField> {};

TEST_P(BadFieldTest, IsNamed) {
  const std::string text = GetParam().fields;
  const bool has_prompt = text.find("prompt {") != std::string::npos;
  const auto converted = Convert((has_prompt ? "" : "prompt { text: 'hi' } ") + text);
  ASSERT_TRUE(absl::IsInvalidArgument(converted.status())) << converted.status();
  EXPECT_THAT(std::string(converted.status().message()),
              ::testing::StartsWith(std::string(GetParam().path) + ": "));
}

INSTANTIATE_TEST_SUITE_P(
    Sampling,
    BadFieldTest,
    ::testing::Values(
        BadField{"sampling { temperature: -0.1 }", "sampling.temperature"},
        BadField{"sampling { temperature: nan }", "sampling.temperature"},
        BadField{"sampling { temperature: inf }", "sampling.temperature"},
        BadField{"sampling { top_p: 0 }", "sampling.top_p"},
        BadField{"sampling { top_p: 1.01 }", "sampling.top_p"},
        BadField{"sampling { top_p: nan }", "sampling.top_p"},
        BadField{"sampling { top_k: -2 }", "sampling.top_k"},
        BadField{"sampling { min_p: -0.1 }", "sampling.min_p"},
        BadField{"sampling { min_p: 1.1 }", "sampling.min_p"},
        BadField{"sampling { typical_p: 0 }", "sampling.typical_p"},
        BadField{"sampling { typical_p: 1.1 }", "sampling.typical_p"},
        BadField{"sampling { repetition_penalty: 0 }", "sampling.repetition_penalty"},
        BadField{"sampling { repetition_penalty: 1e-40 }", "sampling.repetition_penalty"},
        BadField{"sampling { repetition_penalty: 10.1 }", "sampling.repetition_penalty"},
        BadField{"sampling { frequency_penalty: -2.1 }", "sampling.frequency_penalty"},
        BadField{"sampling { frequency_penalty: 2.1 }", "sampling.frequency_penalty"},
        BadField{"sampling { presence_penalty: -2.1 }", "sampling.presence_penalty"},
        BadField{"sampling { presence_penalty: 2.1 }", "sampling.presence_penalty"},
        BadField{"sampling { bad_words: '' }", "sampling.bad_words[0]"},
        BadField{"sampling { bad_words: 'aaaaaaaaaaaaaaaaa' }", "sampling.bad_words[0]"},
        BadField{"sampling { bad_words: ['a','b','c'] }", "sampling.bad_words"}));

// B029: ids and values of logit_bias; 258 to 271 are only padding of the embedding.
INSTANTIATE_TEST_SUITE_P(
    B029LogitBias,
    BadFieldTest,
    ::testing::Values(
        BadField{"sampling { logit_bias { key: 272 value: 5 } }", "sampling.logit_bias[272]"},
        BadField{"sampling { logit_bias { key: 258 value: 5 } }", "sampling.logit_bias[258]"},
        BadField{"sampling { logit_bias { key: 4294967295 value: 5 } }",
                 "sampling.logit_bias[4294967295]"},
        BadField{"sampling { logit_bias { key: 3 value: 1e9 } }", "sampling.logit_bias[3]"},
        BadField{"sampling { logit_bias { key: 3 value: -100.5 } }", "sampling.logit_bias[3]"},
        BadField{"sampling { logit_bias { key: 3 value: nan } }", "sampling.logit_bias[3]"},
        BadField{"sampling { logit_bias { key: 1 value: 1 } logit_bias { key: 2 value: 1 } "
                 "logit_bias { key: 3 value: 1 } logit_bias { key: 4 value: 1 } }",
                 "sampling.logit_bias"}));

// B037: token ids in every field that takes them.
INSTANTIATE_TEST_SUITE_P(
    B037TokenIds,
    BadFieldTest,
    ::testing::Values(
        BadField{"prompt { token_ids { ids: [1, 258] } }", "prompt.token_ids.ids[1]"},
        BadField{"prompt { token_ids { ids: 272 } }", "prompt.token_ids.ids[0]"},
        BadField{"prompt { token_ids { ids: 2147483648 } }", "prompt.token_ids.ids[0]"},
        BadField{"prompt { token_ids { ids: 4294967295 } }", "prompt.token_ids.ids[0]"},
        BadField{"stopping { stop_token_ids: 258 }", "stopping.stop_token_ids[0]"},
        BadField{"stopping { stop_token_ids: 4294967295 }", "stopping.stop_token_ids[0]"},
        BadField{"sampling { allowed_token_ids: [1, 258] }", "sampling.allowed_token_ids[1]"}));

// B038: counts of log-probabilities.
INSTANTIATE_TEST_SUITE_P(
    B038Logprobs,
    BadFieldTest,
    ::testing::Values(BadField{"output { logprobs: -1 }", "output.logprobs"},
                      BadField{"output { logprobs: 21 }", "output.logprobs"},
                      BadField{"output { logprobs: 273 }", "output.logprobs"},
                      BadField{"output { logprobs: 2000000000 }", "output.logprobs"},
                      BadField{"output { prompt_logprobs: -1 }", "output.prompt_logprobs"},
                      BadField{"output { prompt_logprobs: 21 }", "output.prompt_logprobs"}));

INSTANTIATE_TEST_SUITE_P(
    StoppingAndOutput,
    BadFieldTest,
    ::testing::Values(BadField{"stopping { max_tokens: 3 min_tokens: 4 }", "stopping.min_tokens"},
                      BadField{"stopping { min_tokens: 33 }", "stopping.min_tokens"},
                      BadField{"stopping { stop: '' }", "stopping.stop[0]"},
                      BadField{"stopping { stop: ['a', 'aaaaaaaaaaaaaaaaa'] }", "stopping.stop[1]"},
                      BadField{"stopping { stop: ['a', 'b', 'c'] }", "stopping.stop"},
                      BadField{"stopping { stop_token_ids: [1, 2, 3] }", "stopping.stop_token_ids"},
                      BadField{"output { n: 0 }", "output.n"},
                      BadField{"output { n: 5 }", "output.n"},
                      BadField{"output { n: 4294967295 }", "output.n"},
                      BadField{"output { n: 3 best_of: 2 }", "output.best_of"},
                      BadField{"output { best_of: 5 }", "output.best_of"},
                      BadField{"output { logprobs_mode: 9 }", "output.logprobs_mode"},
                      BadField{"prompt { text: 'a' truncate_prompt_tokens: 0 }",
                               "prompt.truncate_prompt_tokens"},
                      BadField{"prompt { text: 'a' truncate_prompt_tokens: 33 }",
                               "prompt.truncate_prompt_tokens"},
                      BadField{"stopping { min_tokens: 1 } sampling { allowed_token_ids: 257 }",
                               "sampling.allowed_token_ids"},
                      BadField{"sampling { allowed_token_ids: 97 bad_words: 'a' }",
                               "sampling.allowed_token_ids"}));

TEST(ConvertRequestTest, EdgesOfEveryRangeAreTaken) {
  for (const char* fields :
       {"sampling { temperature: 0 top_p: 1 top_k: 1 min_p: 0 typical_p: 1 repetition_penalty: 10 "
        "}",
        "sampling { temperature: 1e30 top_p: 1e-6 top_k: 1000000 min_p: 1 typical_p: 1e-6 }",
        "sampling { repetition_penalty: 1e-6 frequency_penalty: -2 presence_penalty: 2 }",
        "sampling { logit_bias { key: 0 value: 100 } logit_bias { key: 257 value: -100 } }",
        "stopping { max_tokens: 0 }",
        "stopping { max_tokens: 4294967295 min_tokens: 32 }",
        "output { n: 4 best_of: 4 logprobs: 20 prompt_logprobs: 0 }"}) {
    const auto converted = Convert(std::string("prompt { text: 'hi' } ") + fields);
    EXPECT_TRUE(converted.ok()) << fields << ": " << converted.status();
  }
}

TEST(ConvertRequestTest, EverythingWrongIsToldAtOnce) {
  const auto converted =
      Convert("prompt { text: 'a' } sampling { temperature: -1 top_p: 2 } output { n: 9 }");
  EXPECT_THAT(std::string(converted.status().message()), HasSubstr("(and 2 more)"));
}

// ---- Names, ids and what is not supported

TEST(ConvertRequestTest, UnknownModelIsNotFound) {
  const auto converted = Convert("model: 'other\\n' prompt { text: 'a' }");
  EXPECT_TRUE(absl::IsNotFound(converted.status()));
  EXPECT_THAT(std::string(converted.status().message()), HasSubstr("\"other\\n\""));
  EXPECT_TRUE(Convert("model: 'fake' prompt { text: 'a' }").ok());
}

TEST(ConvertRequestTest, IdsAndSaltsAreBounded) {
  const auto field = [](const std::string& name, size_t bytes) {
    return Convert(name + ": '" + std::string(bytes, 'i') + "' prompt { text: 'a' }").status();
  };
  EXPECT_TRUE(field("request_id", 128).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(field("request_id", 129)));
  EXPECT_TRUE(absl::IsInvalidArgument(field("request_id", 1 << 20)));
  EXPECT_TRUE(field("cache_salt", 256).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(field("cache_salt", 257)));
  EXPECT_EQ(Convert("prompt { text: 'a' }")->started.request_id(), "made");
}

TEST(ConvertRequestTest, BeamsAreResolvedOrRefused) {
  const auto converted = Convert(
      "prompt { text: 'a' } sampling { beam_search { width: 4 early_stopping: true } } output { n: "
      "2 }");
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->request.n, 2);
  EXPECT_EQ(converted->request.best_of, 4);
  ASSERT_TRUE(converted->request.sampling.beams.has_value());
  EXPECT_EQ(converted->request.sampling.beams->width, 4);
  EXPECT_EQ(converted->request.sampling.beams->length_penalty, 1.0f);
  EXPECT_TRUE(converted->request.sampling.beams->early_stopping);
  EXPECT_EQ(converted->started.output().best_of(), 2u);
  EXPECT_EQ(converted->started.sampling().beam_search().length_penalty(), 1.0f);
  const std::pair<const char*, const char*> kRefused[] = {
      {"sampling { beam_search {} }", "sampling.beam_search.width"},
      {"sampling { beam_search { width: 5 } }", "sampling.beam_search.width"},
      {"sampling { beam_search { width: 2 length_penalty: nan } }",
       "sampling.beam_search.length_penalty"},
      {"sampling { beam_search { width: 2 length_penalty: 11 } }",
       "sampling.beam_search.length_penalty"},
      {"sampling { beam_search { width: 2 } regex: 'a' }", "sampling.beam_search"},
      {"sampling { beam_search { width: 2 } } output { n: 3 }", "output.n"},
      {"sampling { beam_search { width: 4 } } output { n: 1 best_of: 2 }", "output.best_of"}};
  for (const auto& [fields, path] : kRefused) {
    const auto refused = Convert(absl::StrCat("prompt { text: 'a' } ", fields));
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << fields;
    EXPECT_THAT(std::string(refused.status().message()), ::testing::StartsWith(path));
  }
}

TEST(ConvertRequestTest, DraftsAreTheRequestsOrElseTheServers) {
  ServedModel model = MakeFakeModel();
  const auto drafts = [&model](const char* sampling) {
    const auto converted = ConvertRequest(
        Parse(absl::StrCat("prompt { text: 'a' } sampling { ", sampling, " }")), model, kUnary);
    EXPECT_TRUE(converted.ok()) << converted.status();
    const auto& echoed = converted->started.sampling().ngram_speculation();
    EXPECT_EQ(converted->request.sampling.max_draft_tokens,
              static_cast<int32_t>(echoed.max_draft_tokens()));
    return converted->request.sampling.max_draft_tokens;
  };
  EXPECT_EQ(drafts(""), 0);
  EXPECT_EQ(drafts("ngram_speculation { max_draft_tokens: 16 }"), 16);
  model.default_draft_tokens = 8;
  EXPECT_EQ(drafts(""), 8);
  EXPECT_EQ(drafts("ngram_speculation { max_draft_tokens: 3 }"), 3);
  EXPECT_EQ(drafts("ngram_speculation {}"), 0);
  const auto status = Convert(
                          "prompt { text: 'a' } sampling { ngram_speculation { "
                          "max_draft_tokens: 17 } }")
                          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("sampling.ngram_speculation.max_draft_tokens"));
}

TEST(ConvertRequestTest, ConstraintsAreCompiledOnceOrRefusedWithTheReason) {
  const ServedModel model = MakeFakeModel();
  for (const char* sampling : {"json_schema: '{}'",
                               "json_object: true",
                               "regex: 'a+'",
                               "grammar: 'root ::= \"a\"'",
                               "choice { choices: 'a' choices: 'b' }"}) {
    const auto message = Parse(absl::StrCat("prompt { text: 'a' } sampling { ", sampling, " }"));
    const auto first = ConvertRequest(message, model, kUnary);
    const auto second = ConvertRequest(message, model, kUnary);
    ASSERT_TRUE(first.ok() && second.ok()) << first.status();
    ASSERT_NE(first->request.sampling.constraint, nullptr) << sampling;
    EXPECT_EQ(first->request.sampling.constraint, second->request.sampling.constraint);
  }
  EXPECT_EQ(Convert("prompt { text: 'a' }")->request.sampling.constraint, nullptr);
  const std::pair<const char*, const char*> kRefused[] = {
      {"json_schema: ''", "sampling.json_schema: is not valid JSON"},
      {"json_schema: '{\"not\":{}}'", "sampling.json_schema: at #: not is not supported"},
      {"json_object: false", "sampling.json_object: must be true"},
      {"regex: 'a**'", "sampling.regex: at byte 2"},
      {"grammar: ''", "sampling.grammar: has no rule named root"},
      {"choice {}", "sampling.choice: holds no choice"}};
  for (const auto& [sampling, message] : kRefused) {
    const auto converted =
        Convert(absl::StrCat("prompt { text: 'a' } sampling { ", sampling, " }"));
    EXPECT_TRUE(absl::IsInvalidArgument(converted.status())) << sampling;
    EXPECT_THAT(std::string(converted.status().message()), ::testing::HasSubstr(message));
  }
}

TEST(ConvertRequestTest, BestOfNeedsAUnaryCall) {
  CallOrigin origin = kUnary;
  origin.stream = true;
  const auto message = AsStream(Parse("prompt { text: 'a' } output { n: 1 best_of: 2 }"));
  EXPECT_TRUE(absl::IsInvalidArgument(ConvertRequest(message, MakeFakeModel(), origin).status()));
  EXPECT_TRUE(Convert("prompt { text: 'a' } output { n: 1 best_of: 2 }").ok());
}

TEST(ConvertRequestTest, LogitBiasIsSorted) {
  const auto converted = Convert(
      "prompt { text: 'a' } sampling { logit_bias { key: 9 value: 1 } logit_bias { key: 2 value: "
      "-1 } }");
  EXPECT_THAT(converted->request.sampling.logit_bias, ElementsAre(Pair(2, -1.0f), Pair(9, 1.0f)));
}

}  // namespace
}  // namespace pagoda::daemon
