#include "daemon/server/http_message.h"

#include <algorithm>

#include "daemon/server/rpc_error.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

// What the header says; "absent" when there is none.
std::string HeaderOf(const HttpReply& reply, const std::string& name) {
  const auto found = std::find_if(reply.headers.begin(),
                                  reply.headers.end(),
                                  [&name](const auto& header) { return header.first == name; });
  return found == reply.headers.end() ? "absent" : found->second;
}

TEST(HttpMessageTest, HeadOfAWholeAnswer) {
  const size_t body_bytes = 5;
  const HttpHeaders headers = {{"X-Request-Id", "7"}};
  EXPECT_EQ(FormatHead({.status = 404,
                        .content_type = "application/json",
                        .body_bytes = &body_bytes,
                        .headers = &headers}),
            "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
            "X-Request-Id: 7\r\n\r\n");
}

TEST(HttpMessageTest, HeadWithoutABody) {
  const size_t body_bytes = 0;
  EXPECT_EQ(FormatHead({.status = 204, .body_bytes = &body_bytes, .keep_alive = false}),
            "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
}

TEST(HttpMessageTest, HeadOfAStream) {
  EXPECT_EQ(FormatHead({.content_type = "text/event-stream"}),
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            "\r\n");
  // Clients of HTTP/1.0 know no chunks, and keep a connection only where they are told.
  EXPECT_EQ(FormatHead({.http_1_0 = true, .keep_alive = false}),
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
  const size_t body_bytes = 1;
  EXPECT_EQ(FormatHead({.body_bytes = &body_bytes, .http_1_0 = true}),
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\n");
}

TEST(HttpMessageTest, Chunks) { EXPECT_EQ(ChunkHead(26), "1a\r\n"); }

TEST(HttpMessageTest, ErrorsSayWhetherToTryAgain) {
  const HttpReply full = ErrorReply(openai::ToHttpError(TextQueueFullError(3)));
  EXPECT_EQ(full.status, 429);
  EXPECT_NE(HeaderOf(full, "Retry-After"), "absent");
  EXPECT_NE(HeaderOf(full, "Retry-After"), "0");
  EXPECT_NE(HeaderOf(full, "retry-after-ms"), "absent");
  EXPECT_EQ(HeaderOf(full, "x-should-retry"), "absent");
  // By their status alone clients would try these again.
  EXPECT_EQ(HeaderOf(ErrorReply(openai::ToHttpError(InternalError())), "x-should-retry"), "false");
  EXPECT_EQ(HeaderOf(ErrorReply(openai::NotImplementedError("x")), "x-should-retry"), "false");
  const HttpReply invalid = ErrorReply(openai::ToHttpError(InvalidFieldsError({{"x", "is bad"}})));
  EXPECT_EQ(invalid.status, 400);
  EXPECT_TRUE(invalid.headers.empty());
}

TEST(HttpMessageTest, AMissingKeyIsAskedFor) {
  const HttpReply reply = ErrorReply(openai::ToHttpError(UnauthenticatedError()));
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(HeaderOf(reply, "WWW-Authenticate"), "Bearer");
}

}  // namespace
}  // namespace pagoda::daemon
