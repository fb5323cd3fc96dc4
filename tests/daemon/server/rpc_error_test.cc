#include "daemon/server/rpc_error.h"

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), status.error_code());
  EXPECT_EQ(details.message(), status.error_message());
  return details;
}

template <typename Detail>
absl::optional<Detail> Find(const google::rpc::Status& status) {
  Detail detail;
  for (const google::protobuf::Any& any : status.details()) {
    if (any.UnpackTo(&detail)) return detail;
  }
  return absl::nullopt;
}

TEST(RpcErrorTest, OkHasNothing) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).error_details().empty());
}

TEST(RpcErrorTest, InvalidFieldsNameEachField) {
  const grpc::Status status = ToGrpcStatus(InvalidFieldsError({{"a.b", "is bad"}, {"c", "too"}}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "a.b: is bad (and 1 more)");
  const google::rpc::Status details = Details(status);
  const auto bad_request = Find<google::rpc::BadRequest>(details);
  ASSERT_TRUE(bad_request.has_value());
  ASSERT_EQ(bad_request->field_violations_size(), 2);
  EXPECT_EQ(bad_request->field_violations(1).field(), "c");
  const auto info = Find<google::rpc::ErrorInfo>(details);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->domain(), "pagoda.dev");
  EXPECT_EQ(info->reason(), "INVALID_FIELD");
  EXPECT_FALSE(Find<google::rpc::RetryInfo>(details).has_value());
}

TEST(RpcErrorTest, RetryableErrorsSayWhen) {
  for (const absl::Status& error :
       {LoadingError(), DrainingError(), WorkerLostError(), TextQueueFullError(9)}) {
    const auto retry = Find<google::rpc::RetryInfo>(Details(ToGrpcStatus(error)));
    ASSERT_TRUE(retry.has_value()) << error;
    EXPECT_GT(retry->retry_delay().seconds(), 0);
  }
  EXPECT_FALSE(RetryDelay(SlowReaderError("x")).has_value());
}

TEST(RpcErrorTest, StatusesOfTheEngineGetDetailsByTheirCode) {
  const google::rpc::Status full =
      Details(ToGrpcStatus(absl::ResourceExhaustedError("queue: 3 wait")));
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(full)->reason(), "QUEUE_FULL");
  EXPECT_TRUE(Find<google::rpc::RetryInfo>(full).has_value());
  const google::rpc::Status internal =
      Details(ToGrpcStatus(absl::InternalError("non-finite logits")));
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(internal)->reason(), "INTERNAL_ERROR");
  EXPECT_FALSE(Find<google::rpc::RetryInfo>(internal).has_value());
}

TEST(RpcErrorTest, DetailsStaySmallWhateverIsWrong) {
  const std::vector<FieldViolation> many(1000, {std::string(5000, 'f'), std::string(5000, 'd')});
  const grpc::Status status = ToGrpcStatus(InvalidFieldsError(many));
  EXPECT_LE(status.error_details().size(), kMaxErrorDetailBytes);
  EXPECT_TRUE(Find<google::rpc::ErrorInfo>(Details(status)).has_value());
}

TEST(RpcErrorTest, ClientsBytesAreEscapedAndCut) {
  EXPECT_EQ(QuotedExtract("a\"b\n\xff"), "\"a\\\"b\\n\\xff\"");
  EXPECT_LT(QuotedExtract(std::string(1 << 20, 'x')).size(), 100u);
  const grpc::Status status =
      ToGrpcStatus(ModelNotFoundError(std::string(1 << 20, '\xfe'), "served"));
  EXPECT_LE(status.error_details().size(), kMaxErrorDetailBytes);
  EXPECT_THAT(status.error_message(), HasSubstr("served"));
}

TEST(RpcErrorTest, EveryCodeHasItsName) {
  EXPECT_EQ(GrpcCodeName(grpc::StatusCode::OK), "OK");
  EXPECT_EQ(GrpcCodeName(grpc::StatusCode::UNIMPLEMENTED), "UNIMPLEMENTED");
  EXPECT_EQ(GrpcCodeName(grpc::StatusCode::UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_EQ(GrpcCodeName(99), "UNKNOWN");
}

}  // namespace
}  // namespace pagoda::daemon
