#include "daemon/client/failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

grpc::Status WithDetails() {
  google::rpc::Status rich;
  google::rpc::BadRequest bad_request;
  auto* violation = bad_request.add_field_violations();
  violation->set_field("sampling.top_p");
  violation->set_description("1.5 is not in (0, 1]\x1b[31m");
  google::rpc::ErrorInfo info;
  info.set_reason("INVALID_FIELD");
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  retry.mutable_retry_delay()->set_nanos(500'000'000);
  rich.add_details()->PackFrom(info);
  rich.add_details()->PackFrom(bad_request);
  rich.add_details()->PackFrom(retry);
  return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "bad field", rich.SerializeAsString());
}

TEST(DescribeFailure, ShowsWhatTheDetailsSay) {
  const std::string text = DescribeFailure(WithDetails(), "127.0.0.1:1");
  EXPECT_THAT(text, HasSubstr("pagoda: INVALID_ARGUMENT: bad field\n"));
  EXPECT_THAT(text, HasSubstr("  sampling.top_p: 1.5 is not in (0, 1]\uFFFD[31m\n"));
  EXPECT_THAT(text, HasSubstr("  reason: INVALID_FIELD\n"));
  EXPECT_THAT(text, HasSubstr("retry in 1.5 s"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(DescribeFailure, BrokenDetailsAreNoDetails) {
  const grpc::Status status(grpc::StatusCode::INTERNAL, "oops", "\xFF\xFF not a message");
  EXPECT_EQ(DescribeFailure(status, "x"), "pagoda: INTERNAL: oops\n");
}

TEST(DescribeFailure, NobodyThereNamesTheAddress) {
  EXPECT_THAT(DescribeFailure({grpc::StatusCode::UNAVAILABLE, "no"}, "127.0.0.1:1"),
              HasSubstr("127.0.0.1:1"));
}

TEST(FailureKind, IsCodeAndReason) {
  EXPECT_EQ(FailureKind(WithDetails()), "INVALID_ARGUMENT/INVALID_FIELD");
  EXPECT_EQ(FailureKind({grpc::StatusCode::UNAVAILABLE, "no"}), "UNAVAILABLE");
}

TEST(ExitOf, EveryCodeHasAKind) {
  EXPECT_EQ(ExitOf(grpc::Status::OK), ClientExit::kOk);
  EXPECT_EQ(ExitOf(grpc::Status::CANCELLED), ClientExit::kInterrupted);
  const auto exit_of = [](grpc::StatusCode code) { return ExitOf({code, ""}); };
  EXPECT_EQ(exit_of(grpc::StatusCode::INVALID_ARGUMENT), ClientExit::kRefused);
  EXPECT_EQ(exit_of(grpc::StatusCode::NOT_FOUND), ClientExit::kRefused);
  EXPECT_EQ(exit_of(grpc::StatusCode::UNAVAILABLE), ClientExit::kUnavailable);
  EXPECT_EQ(exit_of(grpc::StatusCode::RESOURCE_EXHAUSTED), ClientExit::kUnavailable);
  EXPECT_EQ(exit_of(grpc::StatusCode::DEADLINE_EXCEEDED), ClientExit::kDeadline);
  EXPECT_EQ(exit_of(grpc::StatusCode::INTERNAL), ClientExit::kServerFailed);
  EXPECT_EQ(exit_of(grpc::StatusCode::UNKNOWN), ClientExit::kServerFailed);
}

TEST(PrintableText, KeepsTextAndDropsControls) {
  EXPECT_EQ(PrintableText("a\tb\nc é 😍"), "a\tb\nc é 😍");
  EXPECT_EQ(PrintableText("\x1b]0;x\x07\r\x7F"), "\uFFFD]0;x\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(PrintableText("\xC2\x9B"
                          "31m\xC2\xA0"),
            "\uFFFD"
            "31m\xC2\xA0");
}

}  // namespace
}  // namespace pagoda::daemon
