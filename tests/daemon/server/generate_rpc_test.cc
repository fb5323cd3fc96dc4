// Generate: one answer at the end of a request.
#include <thread>

#include "daemon/server/inference_service.h"
#include "daemon/server/rpc_error.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/service_under_test.h"

namespace pagoda::daemon {
namespace {

TEST(GenerateTest, AnswersOnceWithEverySequence) {
  ServiceUnderTest service;
  v1::GenerateRequest request = UnaryRequest("q");
  request.mutable_output()->set_n(2);
  request.mutable_output()->set_echo(true);
  std::thread engine([&] {
    const engine::Request submitted = service.engine().TakeRequest();
    service.Deliver(StartedDelta(submitted, "ab"));
    service.Deliver(TextDelta(submitted.key, 1, "x"));
    service.Deliver(FinishedDelta(submitted.key, 1, false, engine::FinishReason::kStop));
    service.Deliver(TextDelta(submitted.key, 0, "c"));
    service.Deliver(FinishedDelta(submitted.key, 0, true));
  });
  grpc::ClientContext context;
  v1::GenerateResponse response;
  const grpc::Status status = service.stub().Generate(&context, request, &response);
  engine.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.started().prompt_tokens(), 1u);
  ASSERT_EQ(response.sequences_size(), 2);
  EXPECT_EQ(response.sequences(0).text(), "qabc");
  EXPECT_EQ(response.sequences(0).token_ids_size(), 3);
  EXPECT_EQ(response.sequences(0).finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(response.sequences(1).text(), "qx");
  EXPECT_EQ(response.sequences(1).finished().reason(), v1::FINISH_REASON_STOP);
}

TEST(GenerateTest, ClientThatGoesAwayCancels) {
  ServiceUnderTest service;
  grpc::ClientContext context;
  std::thread client([&] {
    v1::GenerateResponse response;
    EXPECT_EQ(service.stub().Generate(&context, UnaryRequest(), &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  const engine::Request submitted = service.engine().TakeRequest();
  context.TryCancel();
  EXPECT_TRUE(service.engine().WaitForCancel(submitted.key));
  client.join();
  EXPECT_TRUE(Eventually([&] { return service.calls().num_open() == 0; }));
}

TEST(GenerateTest, FailedSequenceFailsTheCall) {
  ServiceUnderTest service;
  std::thread engine([&] {
    const engine::Request submitted = service.engine().TakeRequest();
    service.Deliver(StartedDelta(submitted, "a"));
    service.Deliver(FinishedDelta(submitted.key,
                                  0,
                                  true,
                                  engine::FinishReason::kError,
                                  absl::UnavailableError("worker lost")));
  });
  grpc::ClientContext context;
  v1::GenerateResponse response;
  const grpc::Status status = service.stub().Generate(&context, UnaryRequest(), &response);
  engine.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
}

// ---- Refusals

TEST(GenerateTest, RefusedByTheEngine) {
  ServiceUnderTest service;
  service.engine().RefuseWith(absl::ResourceExhaustedError("queue: 9 sequences wait already"));
  const grpc::Status status = CallGenerate(&service, UnaryRequest());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.details_size(), 2);  // ErrorInfo and RetryInfo
  const auto queue_full = static_cast<size_t>(RejectReason::kQueueFull);
  EXPECT_EQ(service.metrics().requests_rejected[queue_full].load(), 1u);
}

TEST(GenerateTest, UnlessReadyCallsAreRefusedWithAHint) {
  ServiceUnderTest service;
  const std::pair<ServingState, std::string> kStates[] = {
      {ServingState::kLoading, "the model is still being loaded"},
      {ServingState::kDraining, "the daemon is shutting down"},
      {ServingState::kFailed, "the model's worker process is gone"}};
  for (const auto& [state, message] : kStates) {
    service.SetState(state);
    const grpc::Status status = CallGenerate(&service, UnaryRequest());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(status.error_message(), message);
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    EXPECT_EQ(service.stub().Tokenize(&context, {}, &response).error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(service.engine().num_waiting(), 0u);
}

}  // namespace
}  // namespace pagoda::daemon
