#include "daemon/server/request_log.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kValid[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(RequestLogTest, ATraceparentIsTakenOnlyWhenItIsOne) {
  EXPECT_EQ(ValidTraceparent(kValid).value_or(""), kValid);
  for (const char* text : {"",
                           "00",
                           "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                           "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                           "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
                           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
                           "00-4bf92f3577b34da6a3ce929d0e0e473600f067aa0ba902b7-01-1"})
    EXPECT_FALSE(ValidTraceparent(text).has_value()) << text;
}

class StillClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 1'000'000'000;
};

TEST(RequestLogTest, OneLineAtEachEnd) {
  StillClock clock;
  RequestLog log(&clock);
  const LoggedRequest request = {.id = "my id\n\"x\"",
                                 .tenant = "red",
                                 .traceparent = kValid,
                                 .api = Api::kHttp,
                                 .num_prompt_tokens = 12,
                                 .num_cached_tokens = 8,
                                 .num_output_tokens = 5};
  ::testing::internal::CaptureStderr();
  log.NoteStarted(request, 100, 2);
  log.NoteEnded(request, engine::Outcome::kLength, grpc::StatusCode::OK, 1'250'000'000);
  log.NoteEnded({}, engine::Outcome::kRejected, grpc::StatusCode::INVALID_ARGUMENT, 0);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      text,
      HasSubstr("request started id=\"my id\\n\\\"x\\\"\" api=http tenant=red "
                "trace=4bf92f3577b34da6a3ce929d0e0e4736 prompt_tokens=12 max_tokens=100 n=2\n"));
  EXPECT_THAT(text,
              HasSubstr("outcome=length code=OK prompt_tokens=12 cached_tokens=8 output_tokens=5 "
                        "seconds=1.250\n"));
  EXPECT_THAT(text, HasSubstr("request ended api=grpc outcome=rejected code=INVALID_ARGUMENT"));
}

// B111: a flood of one kind of line neither fills the log nor hides another kind.
TEST(RequestLogTest, B111_AFloodIsCounted) {
  StillClock clock;
  RequestLog log(&clock);
  const LoggedRequest request = {.id = "a"};
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 100'000; ++i) {
    clock.now_ns += 100'000;  // ten seconds in all
    log.NoteEnded({}, engine::Outcome::kRejected, grpc::StatusCode::INVALID_ARGUMENT, 0);
  }
  log.NoteEnded(request, engine::Outcome::kStop, grpc::StatusCode::OK, 0);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 500 + 10 * 50 + 2);
  EXPECT_THAT(text, HasSubstr("times since the last such line)"));
  EXPECT_THAT(text, HasSubstr("request ended id=\"a\""));
}

}  // namespace
}  // namespace pagoda::daemon
