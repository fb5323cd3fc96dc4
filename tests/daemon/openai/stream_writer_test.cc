#include "daemon/openai/stream_writer.h"

#include "absl/strings/str_split.h"
#include "daemon/openai/reply_writer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace pagoda::daemon::openai {
namespace {

v1::StreamGenerateResponse Started(uint32_t prompt_tokens) {
  v1::StreamGenerateResponse message;
  message.mutable_started()->set_prompt_tokens(prompt_tokens);
  return message;
}

v1::StreamGenerateResponse Text(const std::string& text) {
  v1::StreamGenerateResponse message;
  message.mutable_delta()->set_text(text);
  message.mutable_delta()->add_token_ids(7);
  return message;
}

v1::Finished Finished(v1::FinishReason reason) {
  v1::Finished finished;
  finished.set_reason(reason);
  finished.mutable_usage()->set_prompt_tokens(3);
  finished.mutable_usage()->set_completion_tokens(2);
  finished.mutable_usage()->set_cached_tokens(1);
  return finished;
}

std::string EventsOf(StreamWriter* writer, const v1::StreamGenerateResponse& message) {
  std::string out;
  writer->Append(message, &out);
  return out;
}

TEST(StreamWriterTest, Chat) {
  const ResponseShape shape = {
      .endpoint = Endpoint::kChat, .id = "chatcmpl-1", .model = "m", .created = 5};
  StreamWriter writer(&shape, 0, 1);
  const std::string head =
      "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,"
      "\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":";
  EXPECT_EQ(EventsOf(&writer, Started(3)),
            head +
                "{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                "\"finish_reason\":null}]}\n\n");
  EXPECT_EQ(EventsOf(&writer, Text("a\"\n")),
            head + "{\"content\":\"a\\\"\\n\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
  v1::StreamGenerateResponse end;
  *end.mutable_finished() = Finished(v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(EventsOf(&writer, end),
            head + "{},\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}]}\n\n");
  EXPECT_EQ(UsageEvent(shape, writer.usage()),
            "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,"
            "\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,"
            "\"total_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":1},"
            "\"completion_tokens_details\":{\"reasoning_tokens\":0}}}\n\n");
}

TEST(StreamWriterTest, AFailedSequenceHasNoFinishReason) {
  const ResponseShape shape = {.id = "cmpl-1", .model = "m"};
  StreamWriter writer(&shape, 0, 1);
  v1::StreamGenerateResponse end;
  *end.mutable_finished() = Finished(v1::FINISH_REASON_ERROR);
  EXPECT_EQ(EventsOf(&writer, end), "");
}

TEST(StreamWriterTest, CompletionLogprobsAndSecondPrompt) {
  const ResponseShape shape = {.id = "cmpl-1", .model = "m", .created = 5, .logprobs = true};
  StreamWriter writer(&shape, 1, 1);
  v1::StreamGenerateResponse message = Text("\xC3\xA9");
  v1::TokenLogprobs* position = message.mutable_delta()->add_logprobs();
  position->mutable_token()->set_token_bytes("\xC3\xA9");
  position->mutable_token()->set_logprob(-0.5f);
  const std::string text = "\xC3\xA9";
  const std::string head =
      "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\","
      "\"choices\":[{\"index\":1,\"text\":\"" +
      text + "\",\"logprobs\":{\"tokens\":[\"" + text +
      "\"],\"token_logprobs\":[-0.5],\"top_logprobs\":[{\"" + text + "\":-0.5}],\"text_offset\":[";
  EXPECT_EQ(EventsOf(&writer, message), head + "0]},\"finish_reason\":null}]}\n\n");
  EXPECT_EQ(EventsOf(&writer, message), head + "1]},\"finish_reason\":null}]}\n\n");
}

// Each token with its log-probability, as the engine gives them: text lags behind.
v1::StreamGenerateResponse Token(const std::string& bytes, const std::string& text) {
  v1::StreamGenerateResponse message = Text(text);
  v1::TokenLogprobs* position = message.mutable_delta()->add_logprobs();
  position->mutable_token()->set_token_bytes(bytes);
  position->mutable_token()->set_logprob(-1.0f);
  return message;
}

// The tokens that the events' log-probabilities name.
std::vector<std::string> TokensOf(const std::string& events) {
  std::vector<std::string> tokens;
  for (absl::string_view line : absl::StrSplit(events, '\n', absl::SkipEmpty())) {
    const auto event = nlohmann::json::parse(line.substr(6));
    const auto& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const auto& token : logprobs["tokens"]) tokens.push_back(token);
  }
  return tokens;
}

TEST(StreamWriterTest, LogprobsEndWhereAStopStringBegins) {
  const ResponseShape shape = {.id = "cmpl-1", .model = "m", .logprobs = true, .max_stop_bytes = 4};
  for (const std::string last : {"D", "Dxyz"}) {
    StreamWriter writer(&shape, 0, 1);
    std::string events;
    for (const auto& message :
         {Token("a", "a"), Token("bE", ""), Token("x", "bEx"), Token("yE", "y"), Token("N", "")})
      writer.Append(message, &events);
    EXPECT_EQ(TokensOf(events), (std::vector<std::string>{"a", "bE", "x", "yE"}));
    writer.Append(Token(last, ""), &events);
    v1::StreamGenerateResponse end;
    *end.mutable_finished() = Finished(v1::FINISH_REASON_STOP_SEQUENCE);
    end.mutable_finished()->set_stop_string("END");
    writer.Append(end, &events);
    EXPECT_EQ(TokensOf(events), (std::vector<std::string>{"a", "bE", "x", "yE"}));
  }
}

TEST(StreamWriterTest, HeldLogprobsComeWhenNothingStops) {
  const ResponseShape shape = {.id = "cmpl-1", .model = "m", .logprobs = true, .max_stop_bytes = 3};
  StreamWriter writer(&shape, 0, 1);
  std::string events;
  for (const auto& message : {Token("a", "a"), Token("E", ""), Token("N", "")})
    writer.Append(message, &events);
  EXPECT_EQ(TokensOf(events), std::vector<std::string>{"a"});
  writer.Append(Text("EN"), &events);
  v1::StreamGenerateResponse end;
  *end.mutable_finished() = Finished(v1::FINISH_REASON_LENGTH);
  writer.Append(end, &events);
  EXPECT_EQ(TokensOf(events), (std::vector<std::string>{"a", "E", "N"}));
}

TEST(ReplyWriterTest, LogprobsEndWhereAStopStringBegins) {
  v1::GenerateResponse reply;
  auto* sequence = reply.add_sequences();
  sequence->set_text("ab");
  for (const auto& message : {Token("a", ""), Token("bE", ""), Token("ND", "")})
    *sequence->add_logprobs() = message.delta().logprobs(0);
  *sequence->mutable_finished() = Finished(v1::FINISH_REASON_STOP_SEQUENCE);
  sequence->mutable_finished()->set_stop_string("END");
  UsageTotals usage;
  const auto tokens = [&](const ResponseShape& shape) {
    return nlohmann::json::parse(ChoicesJson(reply, shape, 0, &usage))["logprobs"]["tokens"];
  };
  EXPECT_EQ(tokens({.logprobs = true, .max_stop_bytes = 3}), (nlohmann::json{"a", "bE"}));
  EXPECT_EQ(tokens({.logprobs = true}), (nlohmann::json{"a", "bE", "ND"}));
}

TEST(ReplyWriterTest, Completion) {
  const ResponseShape shape = {.id = "cmpl-1", .model = "m", .created = 5};
  v1::GenerateResponse reply;
  reply.add_sequences()->set_text("x");
  *reply.mutable_sequences(0)->mutable_finished() = Finished(v1::FINISH_REASON_STOP_SEQUENCE);
  reply.mutable_sequences(0)->mutable_finished()->set_stop_string("END");
  UsageTotals usage;
  const std::string choices = ChoicesJson(reply, shape, 0, &usage);
  EXPECT_EQ(ResponseJson(shape, {choices}, usage),
            "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\","
            "\"choices\":[{\"index\":0,\"text\":\"x\",\"logprobs\":null,\"finish_reason\":\"stop\","
            "\"stop_reason\":\"END\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,"
            "\"total_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":1},"
            "\"completion_tokens_details\":{\"reasoning_tokens\":0}}}");
}

}  // namespace
}  // namespace pagoda::daemon::openai
