#include "daemon/server/vllm/engine_service.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/service_under_test.h"
#include "tests/fixtures/model_files.h"

namespace pagoda::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

engine_pb::GenerateRequest TokensRequest(bool stream, uint32_t n = 1) {
  engine_pb::GenerateRequest request;
  request.set_stream(stream);
  request.mutable_tokenized()->add_input_ids('h');
  request.mutable_tokenized()->add_input_ids('i');
  request.mutable_sampling_params()->set_n(n);
  return request;
}

// A Generate call and what the engine was asked for it.
struct OpenCall {
  OpenCall(ServiceUnderTest* service, const engine_pb::GenerateRequest& request)
      : reader(service->engine_stub().Generate(&context, request)),
        submitted(service->engine().TakeRequest()) {}

  engine_pb::GenerateResponse Read() {
    engine_pb::GenerateResponse message;
    EXPECT_TRUE(reader->Read(&message));
    return message;
  }
  grpc::Status Finish() {
    engine_pb::GenerateResponse message;
    while (reader->Read(&message)) rest.push_back(message);
    return reader->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<engine_pb::GenerateResponse>> reader;
  engine::Request submitted;
  std::vector<engine_pb::GenerateResponse> rest;
};

grpc::Status GenerateStatus(ServiceUnderTest* service, const engine_pb::GenerateRequest& request) {
  grpc::ClientContext context;
  const auto reader = service->engine_stub().Generate(&context, request);
  engine_pb::GenerateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  return reader->Finish();
}

grpc::Status Abort(ServiceUnderTest* service, const std::vector<std::string>& ids) {
  grpc::ClientContext context;
  engine_pb::AbortRequest request;
  for (const std::string& id : ids) request.add_request_ids(id);
  engine_pb::AbortResponse response;
  return service->engine_stub().Abort(&context, request, &response);
}

TEST(EngineServiceTest, AStreamIsChunksAndOneCompletePerSequence) {
  ServiceUnderTest service;
  OpenCall call(&service, TokensRequest(/*stream=*/true, /*n=*/2));
  service.Deliver(StartedDelta(call.submitted, "ab"));
  const engine_pb::GenerateResponse first = call.Read();
  EXPECT_THAT(first.chunk().token_ids(), ElementsAre('a', 'b'));
  EXPECT_EQ(first.chunk().prompt_tokens(), 2u);
  EXPECT_EQ(first.chunk().cached_tokens(), 1u);
  service.Deliver(TextDelta(call.submitted.key, 1, "c"));
  EXPECT_EQ(call.Read().chunk().index(), 1u);
  service.Deliver(FinishedDelta(call.submitted.key, 1, false));
  const engine_pb::GenerateResponse complete = call.Read();
  EXPECT_EQ(complete.complete().index(), 1u);
  EXPECT_EQ(complete.complete().finish_reason(), "length");
  EXPECT_TRUE(complete.complete().output_ids().empty());
  service.Deliver(FinishedDelta(call.submitted.key, 0, true, engine::FinishReason::kStop));
  EXPECT_TRUE(call.Finish().ok());
  ASSERT_EQ(call.rest.size(), 1u);
  EXPECT_EQ(call.rest[0].complete().finish_reason(), "stop");
  EXPECT_TRUE(Eventually([&] { return service.calls().num_open() == 0; }));
}

TEST(EngineServiceTest, WithoutStreamThereAreCompletesAlone) {
  ServiceUnderTest service;
  OpenCall call(&service, TokensRequest(/*stream=*/false, /*n=*/2));
  service.Deliver(StartedDelta(call.submitted, "ab"));
  for (int i = 0; i < 50; ++i) {
    service.Deliver(TextDelta(call.submitted.key, 0, "x"));
    service.Deliver(TextDelta(call.submitted.key, 1, "y"));
  }
  service.Deliver(FinishedDelta(call.submitted.key, 0, false));
  service.Deliver(FinishedDelta(call.submitted.key, 1, true));
  EXPECT_TRUE(call.Finish().ok());
  ASSERT_EQ(call.rest.size(), 2u);
  EXPECT_EQ(call.rest[0].complete().output_ids_size(), 52);
  EXPECT_EQ(call.rest[1].complete().output_ids_size(), 50);
}

TEST(EngineServiceTest, FailuresAreStatusesNotMessages) {
  ServiceUnderTest service;
  for (const bool stream : {false, true}) {
    OpenCall call(&service, TokensRequest(stream));
    service.Deliver(FinishedDelta(
        call.submitted.key, 0, true, engine::FinishReason::kError, absl::UnavailableError("lost")));
    EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_TRUE(call.rest.empty());
  }
  engine_pb::GenerateRequest bad = TokensRequest(true);
  bad.mutable_sampling_params()->set_temperature(-1);
  const grpc::Status refused = GenerateStatus(&service, bad);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("sampling_params.temperature"));
  service.engine().RefuseWith(absl::ResourceExhaustedError("full"));
  EXPECT_EQ(GenerateStatus(&service, TokensRequest(true)).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (const ServingState state : {ServingState::kLoading, ServingState::kDraining}) {
    service.SetState(state);
    EXPECT_EQ(GenerateStatus(&service, TokensRequest(false)).error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
}

TEST(EngineServiceTest, AnAbortedRequestEndsWell) {
  ServiceUnderTest service;
  EXPECT_TRUE(Abort(&service, {"nobody's", ""}).ok());
  for (const bool stream : {false, true}) {
    engine_pb::GenerateRequest request = TokensRequest(stream);
    request.set_request_id("mine");
    OpenCall call(&service, request);
    EXPECT_EQ(GenerateStatus(&service, request).error_code(), grpc::StatusCode::ALREADY_EXISTS);
    service.Deliver(StartedDelta(call.submitted, "a"));
    EXPECT_TRUE(Abort(&service, {"other", "mine", "mine"}).ok());
    EXPECT_TRUE(service.engine().WasCancelled(call.submitted.key));
    service.Deliver(FinishedDelta(call.submitted.key,
                                  0,
                                  true,
                                  engine::FinishReason::kCancelled,
                                  absl::CancelledError("cancelled")));
    EXPECT_TRUE(call.Finish().ok());
    ASSERT_FALSE(call.rest.empty());
    EXPECT_EQ(call.rest.back().complete().finish_reason(), "abort");
    EXPECT_TRUE(Abort(&service, {"mine"}).ok());
  }
}

// An abort that comes while the request is on its way to the engine is not lost.
TEST(EngineServiceTest, AbortsBeforeSubmission) {
  LiveRequestIds ids;
  const engine::RequestKey key(3), next(4);
  EXPECT_FALSE(ids.Abort("a").has_value());
  ASSERT_TRUE(ids.Insert("a", key));
  EXPECT_FALSE(ids.Insert("a", next));
  EXPECT_FALSE(ids.WasAborted("a", key));
  EXPECT_EQ(ids.Abort("a"), key);
  EXPECT_TRUE(ids.WasAborted("a", key));
  ids.Erase("a");
  ASSERT_TRUE(ids.Insert("a", next));
  EXPECT_FALSE(ids.WasAborted("a", key));
  EXPECT_FALSE(ids.WasAborted("a", next));
}

TEST(EngineServiceTest, ACancelledCallFreesItsRequest) {
  ServiceUnderTest service;
  OpenCall call(&service, TokensRequest(/*stream=*/false));
  call.context.TryCancel();
  EXPECT_TRUE(service.engine().WaitForCancel(call.submitted.key));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(EngineServiceTest, DescribesItself) {
  const fixtures::TemporaryDir dir;
  dir.Write("tokenizer.json", std::string(200'000, ' '));
  ServiceUnderTest service({.model_dir = dir.path()});
  engine_pb::VllmEngine::Stub& stub = service.engine_stub();
  {
    grpc::ClientContext context;
    engine_pb::HealthCheckResponse health;
    EXPECT_TRUE(stub.HealthCheck(&context, {}, &health).ok());
    EXPECT_TRUE(health.healthy());
  }
  {
    grpc::ClientContext context;
    engine_pb::GetModelInfoResponse info;
    EXPECT_TRUE(stub.GetModelInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.served_model_name(), "fake");
  }
  {
    OpenCall call(&service, TokensRequest(true));
    grpc::ClientContext context;
    engine_pb::GetServerInfoResponse info;
    EXPECT_TRUE(stub.GetServerInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.server_type(), "pagoda");
    EXPECT_EQ(info.active_requests(), 1u);
    EXPECT_GT(info.last_receive_timestamp(), 1.7e9);
    EXPECT_GT(info.uptime_seconds(), 0);
    EXPECT_FALSE(info.is_paused());
    call.context.TryCancel();
  }
  {
    grpc::ClientContext context;
    engine_pb::GetLoadsResponse loads;
    EXPECT_TRUE(stub.GetLoads(&context, {}, &loads).ok());
    EXPECT_EQ(loads.dp_rank_count(), 1);
    ASSERT_EQ(loads.loads_size(), 1);
    EXPECT_EQ(loads.loads(0).max_running_requests(), 8);
  }
  {
    grpc::ClientContext context;
    engine_pb::GetLoadsRequest request;
    request.set_dp_rank(1);
    engine_pb::GetLoadsResponse loads;
    const grpc::Status status = stub.GetLoads(&context, request, &loads);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("dp_rank"));
  }
  {
    grpc::ClientContext context;
    engine_pb::EmbedResponse embedding;
    EXPECT_EQ(stub.Embed(&context, {}, &embedding).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  service.SetState(ServingState::kLoading);
  grpc::ClientContext context, health_context;
  engine_pb::GetModelInfoResponse info;
  EXPECT_EQ(stub.GetModelInfo(&context, {}, &info).error_code(), grpc::StatusCode::UNAVAILABLE);
  engine_pb::HealthCheckResponse health;
  EXPECT_TRUE(stub.HealthCheck(&health_context, {}, &health).ok());
  EXPECT_FALSE(health.healthy());
  EXPECT_EQ(health.message(), "loading");
}

TEST(EngineServiceTest, ADaemonWithAllHandsFullStillTakesAbortsAndTellsItsLoad) {
  ServiceUnderTest service({.max_waiting_tasks = 0});
  EXPECT_EQ(GenerateStatus(&service, TokensRequest(true)).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Abort(&service, {"any"}).ok());
  grpc::ClientContext context;
  engine_pb::GetLoadsResponse loads;
  EXPECT_TRUE(service.engine_stub().GetLoads(&context, {}, &loads).ok());
  // A long one waits its turn.
  EXPECT_EQ(Abort(&service, {std::string(100'000, 'x')}).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(EngineServiceTest, TheTokenizerComesInPieces) {
  const fixtures::TemporaryDir dir;
  std::string noise(200'000, '\0');
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<char>(i * i * 2654435761u >> 13);
  dir.Write("tokenizer.json", noise);
  ServiceUnderTest service({.model_dir = dir.path()});
  const auto expected = MakeTokenizerBundle(dir.path());
  ASSERT_TRUE(expected.ok());
  for (int pass = 0; pass < 2; ++pass) {
    grpc::ClientContext context;
    const auto reader = service.engine_stub().GetTokenizer(&context, {});
    std::string zip;
    std::vector<std::string> fingerprints;
    smg_pb::GetTokenizerChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_LE(chunk.data().size(), size_t{64} << 10);
      zip += chunk.data();
      fingerprints.push_back(chunk.sha256());
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_EQ(zip, expected->zip);
    ASSERT_GT(fingerprints.size(), 1u);
    EXPECT_EQ(fingerprints.back(), expected->sha256);
    fingerprints.pop_back();
    EXPECT_THAT(fingerprints, ::testing::Each(""));
  }
  // A client that leaves in the middle.
  grpc::ClientContext context;
  const auto reader = service.engine_stub().GetTokenizer(&context, {});
  smg_pb::GetTokenizerChunk chunk;
  EXPECT_TRUE(reader->Read(&chunk));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(EngineServiceTest, KvEventsFollowTheEngine) {
  ServiceUnderTest service;
  EXPECT_EQ(service.watch(), 0u);
  grpc::ClientContext context;
  smg_pb::SubscribeKvEventsRequest request;
  request.set_start_sequence_number(9);
  const auto reader = service.engine_stub().SubscribeKvEvents(&context, request);
  ASSERT_TRUE(Eventually([&] { return service.watch() != 0; }));
  engine::BlockEvents all = {.watch = service.watch(), .block_size = 1};
  all.AddCleared();
  service.kv_events().DeliverBlocks(std::move(all));
  smg_pb::KvEventBatch batch;
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_EQ(batch.sequence_number(), 10u);
  ASSERT_EQ(batch.events_size(), 1);
  EXPECT_TRUE(batch.events(0).has_cleared());
  engine::BlockEvents stored = {.watch = service.watch(), .block_size = 1};
  stored.AddStored({.low = UINT64_MAX, .high = 1}, nullptr, {5});
  service.kv_events().DeliverBlocks(std::move(stored));
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_EQ(batch.sequence_number(), 11u);
  EXPECT_EQ(batch.events(0).stored().blocks(0).block_hash(), INT64_MAX);
  EXPECT_FALSE(batch.events(0).stored().has_parent_block_hash());
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return service.watch() == 0; }));
  service.SetState(ServingState::kLoading);
  grpc::ClientContext early;
  EXPECT_EQ(service.engine_stub().SubscribeKvEvents(&early, request)->Finish().error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace pagoda::daemon
