#include "daemon/client/sse_response.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Outcome {
  SseResponse response;
  std::vector<std::string> events;
};

Outcome ReadIn(const std::string& bytes, size_t piece_bytes) {
  Outcome outcome;
  for (size_t at = 0; at < bytes.size(); at += piece_bytes)
    outcome.response.Feed(absl::string_view(bytes).substr(at, piece_bytes), &outcome.events);
  return outcome;
}

std::string Chunk(const std::string& bytes, const char* extension = "") {
  return absl::StrCat(absl::Hex(bytes.size()), extension, "\r\n", bytes, "\r\n");
}

TEST(SseResponseTest, EventsAreTheSameHoweverTheyAreCut) {
  const std::string bytes = absl::StrCat(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
      "Transfer-Encoding: chunked\r\n\r\n",
      Chunk("data: {\"a"),
      Chunk("\":1}\n\n: quiet\n\nd", ";extension=1"),
      Chunk("ata:two\ndata: lines\r\n\r\ndat"),
      Chunk("a: [DONE]\n\nid: 7\n"),
      "0\r\nTrailer: x\r\n\r\n");
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    const Outcome outcome = ReadIn(bytes, piece);
    EXPECT_THAT(outcome.events, ElementsAre("{\"a\":1}", "two\nlines", "[DONE]")) << piece;
    EXPECT_TRUE(outcome.response.keeps_connection());
    EXPECT_EQ(outcome.response.status(), 200);
  }
}

TEST(SseResponseTest, EventsUpToTheEndOfTheConnection) {
  Outcome outcome = ReadIn(
      "HTTP/1.0 200 OK\nContent-Type: text/event-stream\n\ndata: 1\n\ndata: unfinished\n", 3);
  EXPECT_FALSE(outcome.response.is_complete());
  outcome.response.FinishInput();
  EXPECT_TRUE(outcome.response.is_complete());
  EXPECT_FALSE(outcome.response.keeps_connection());
  EXPECT_THAT(outcome.events, ElementsAre("1"));
}

TEST(SseResponseTest, ABodyOfItsLengthAndNoMore) {
  const std::string bytes =
      "HTTP/1.1 100 Continue\r\n\r\n"
      "HTTP/1.1 429 Too Many\r\ncontent-length: 5\r\nConnection: close\r\n\r\n"
      "{\"a\"}";
  for (size_t piece : {size_t{1}, size_t{4}, bytes.size()}) {
    const Outcome outcome = ReadIn(bytes, piece);
    EXPECT_EQ(outcome.response.status(), 429);
    EXPECT_EQ(outcome.response.body(), "{\"a\"}");
    EXPECT_TRUE(outcome.response.is_complete());
    EXPECT_FALSE(outcome.response.keeps_connection());
    EXPECT_THAT(outcome.events, IsEmpty());
  }
  SseResponse response;
  std::vector<std::string> events;
  EXPECT_EQ(response.Feed(bytes + "HTTP/1.1 next", &events), bytes.size());
}

TEST(SseResponseTest, WhatIsNoHttpOrEndsEarlyIsBroken) {
  EXPECT_TRUE(ReadIn("SSH-2.0-x\r\n", 100).response.is_broken());
  EXPECT_TRUE(ReadIn("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 100)
                  .response.is_broken());
  EXPECT_TRUE(
      ReadIn("HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x'), 1000).response.is_broken());
  Outcome cut = ReadIn("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc", 100);
  cut.response.FinishInput();
  EXPECT_TRUE(cut.response.is_broken());
}

}  // namespace
}  // namespace pagoda::daemon
