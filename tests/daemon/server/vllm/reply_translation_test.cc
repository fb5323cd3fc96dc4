#include "daemon/server/vllm/reply_translation.h"

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

std::string Text(const google::protobuf::Message& message) { return message.ShortDebugString(); }

// What an event, as text, becomes, as text; "" for no message.
std::string Translated(ReplyTranslator* replies, const std::string& event) {
  v1::StreamGenerateResponse message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(event, &message)) << event;
  const auto response = replies->Translate(message);
  return response.has_value() ? Text(*response) : "";
}

// Text of a message in the printer's own spelling.
std::string Same(const std::string& text) {
  engine_pb::GenerateResponse message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return Text(message);
}

TEST(ReplyTranslationTest, AStreamOfTwoSequences) {
  ReplyTranslator replies(/*stream=*/true);
  EXPECT_EQ(Translated(&replies, "started { prompt_tokens: 4 cached_tokens: 2 }"), "");
  EXPECT_EQ(Translated(&replies, "delta { token_ids: [5, 6] }"),
            Same("chunk { token_ids: [5, 6] prompt_tokens: 4 completion_tokens: 2 "
                 "cached_tokens: 2 }"));
  EXPECT_EQ(Translated(&replies, "delta { index: 1 token_ids: 7 }"),
            Same("chunk { token_ids: 7 prompt_tokens: 4 completion_tokens: 1 cached_tokens: 2 "
                 "index: 1 }"));
  EXPECT_EQ(Translated(&replies, "delta { text: 'late' }"), "");
  EXPECT_EQ(Translated(&replies,
                       "finished { index: 1 reason: FINISH_REASON_LENGTH "
                       "usage { completion_tokens: 1 } }"),
            Same("complete { finish_reason: 'length' prompt_tokens: 4 completion_tokens: 1 "
                 "cached_tokens: 2 index: 1 }"));
  EXPECT_EQ(Translated(&replies,
                       "finished { reason: FINISH_REASON_STOP_SEQUENCE stop_string: 'x' "
                       "usage { completion_tokens: 2 } }"),
            Same("complete { finish_reason: 'stop' prompt_tokens: 4 completion_tokens: 2 "
                 "cached_tokens: 2 matched_stop_str: 'x' }"));
}

TEST(ReplyTranslationTest, WithoutStreamEachSequenceIsOneMessage) {
  ReplyTranslator replies(/*stream=*/false);
  EXPECT_EQ(Translated(&replies,
                       "started { prompt_tokens: 1 output { logprobs: 1 prompt_logprobs: 0 } }"),
            "");
  EXPECT_EQ(Translated(&replies, "delta { prompt_logprobs { token { token_id: 9 } } }"), "");
  const std::string position =
      "logprobs { token { token_id: 5 logprob: -1 } top { token_id: 8 logprob: -0.5 } }";
  EXPECT_EQ(Translated(&replies, "delta { token_ids: 5 " + position + " }"), "");
  EXPECT_EQ(Translated(&replies, "delta { index: 1 token_ids: 5 " + position + " }"), "");
  EXPECT_EQ(Translated(&replies, "delta { token_ids: 5 " + position + " }"), "");
  EXPECT_EQ(Translated(&replies,
                       "finished { reason: FINISH_REASON_STOP usage { completion_tokens: 2 } }"),
            Same("complete { output_ids: [5, 5] finish_reason: 'stop' prompt_tokens: 1 "
                 "completion_tokens: 2 output_logprobs { token_logprobs: [-1, -1] "
                 "token_ids: [5, 5] top_logprobs { values: -0.5 token_ids: 8 } "
                 "top_logprobs { values: -0.5 token_ids: 8 } } "
                 "input_logprobs { token_logprobs {} token_ids: 9 } }"));
  EXPECT_EQ(Translated(&replies,
                       "finished { index: 1 reason: FINISH_REASON_STOP_SEQUENCE "
                       "stop_token_id: 5 usage { completion_tokens: 1 } }"),
            Same("complete { output_ids: 5 finish_reason: 'stop' prompt_tokens: 1 "
                 "completion_tokens: 1 output_logprobs { token_logprobs: -1 token_ids: 5 "
                 "top_logprobs { values: -0.5 token_ids: 8 } } "
                 "input_logprobs { token_logprobs {} token_ids: 9 } index: 1 "
                 "matched_token_id: 5 }"));
}

TEST(ReplyTranslationTest, PromptLogprobsComeInTheFirstChunkOfEachSequence) {
  ReplyTranslator replies(/*stream=*/true);
  Translated(&replies, "started { output { prompt_logprobs: 1 } }");
  // In pieces.
  Translated(&replies, "delta { prompt_logprobs { token { token_id: 3 } } }");
  Translated(&replies,
             "delta { prompt_logprobs { token { token_id: 4 logprob: -2 } "
             "top { token_id: 6 logprob: -1 } } }");
  const std::string prompt =
      " input_logprobs { token_logprobs {} token_logprobs { value: -2 } token_ids: [3, 4] "
      "top_logprobs {} top_logprobs { values: -1 token_ids: 6 } }";
  EXPECT_EQ(Translated(&replies, "delta { token_ids: 5 }"),
            Same("chunk { token_ids: 5 completion_tokens: 1" + prompt + "}"));
  EXPECT_EQ(Translated(&replies, "delta { token_ids: 5 }"),
            Same("chunk { token_ids: 5 completion_tokens: 1 }"));
  EXPECT_EQ(Translated(&replies, "delta { index: 1 token_ids: 5 }"),
            Same("chunk { token_ids: 5 completion_tokens: 1 index: 1" + prompt + "}"));
  EXPECT_EQ(Translated(&replies, "finished { index: 1 reason: FINISH_REASON_LENGTH }"),
            Same("complete { finish_reason: 'length' index: 1 }"));
  // One without tokens has no chunk.
  EXPECT_EQ(Translated(&replies, "finished { index: 2 reason: FINISH_REASON_LENGTH }"),
            Same("complete { finish_reason: 'length' index: 2" + prompt + "}"));
}

TEST(ReplyTranslationTest, OnlyTrueEndsAreMessages) {
  for (const bool stream : {false, true}) {
    ReplyTranslator replies(stream);
    EXPECT_EQ(Translated(&replies, "finished { reason: FINISH_REASON_ERROR }"), "");
    EXPECT_EQ(Translated(&replies, "finished { reason: FINISH_REASON_DEADLINE }"), "");
    EXPECT_FALSE(replies.has_told_abort());
    EXPECT_EQ(Translated(&replies, "finished { reason: FINISH_REASON_CANCELLED }"),
              Same("complete { finish_reason: 'abort' }"));
    EXPECT_TRUE(replies.has_told_abort());
  }
}

}  // namespace
}  // namespace pagoda::daemon
