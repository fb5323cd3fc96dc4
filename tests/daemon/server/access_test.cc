// Every RPC and every HTTP route, by what keys let do: none is left out, because the lists are the
// server's own.
#include "daemon/server/access.h"

#include <map>
#include <string>
#include <vector>

#include "daemon/server/http_routes.h"
#include "daemon/server/rpc_routes.h"
#include "gmock/gmock.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/service_under_test.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kKeys[] =
    "metrics-key class=metrics\nuser-key tenant=red\nblue-key tenant=blue\nadmin-key class=admin\n";

ApiKeys Keys() { return *ApiKeys::Parse(kKeys); }

// What is shown, and the highest class that it gives.
struct Shown {
  std::string authorization;
  AccessClass access;
};
const std::vector<Shown> kShown = {
    {"", AccessClass::kPublic},
    {"Bearer", AccessClass::kPublic},
    {"Bearer wrong", AccessClass::kPublic},
    {"Bearer user-ke", AccessClass::kPublic},
    {"Basic user-key", AccessClass::kPublic},
    {"Bearer metrics-key", AccessClass::kMetrics},
    {"Bearer user-key", AccessClass::kUser},
    {"Bearer admin-key", AccessClass::kAdmin},
};

// With an empty request: whoever is let in is told what is wrong with it, or answered.
grpc::Status Call(grpc::Channel* channel,
                  const std::string& method,
                  const std::string& shown,
                  std::chrono::milliseconds patience = std::chrono::seconds(10)) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  if (!shown.empty()) context.AddMetadata("authorization", shown);
  const grpc::internal::RpcMethod rpc(method.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  return grpc::internal::BlockingUnaryCall(channel, rpc, &context, request, &response);
}

// Of the file's one service, as the protos have them: the server's list has to say the same.
template <typename Routes>
void AddRpcs(const google::protobuf::FileDescriptor* file,
             const Routes& routes,
             std::map<std::string, AccessClass>* rpcs) {
  ASSERT_EQ(file->service_count(), 1);
  const google::protobuf::ServiceDescriptor* const service = file->service(0);
  ASSERT_EQ(static_cast<size_t>(service->method_count()), routes.size());
  for (const RpcRoute& route : routes) {
    const std::string method(route.method);
    EXPECT_NE(service->FindMethodByName(method), nullptr) << method;
    (*rpcs)["/" + service->full_name() + "/" + method] = route.access;
  }
}

std::map<std::string, AccessClass> AllRpcs() {
  std::map<std::string, AccessClass> rpcs;
  AddRpcs(v1::GenerateRequest::descriptor()->file(), kInferenceRoutes, &rpcs);
  AddRpcs(engine_pb::GenerateRequest::descriptor()->file(), kEngineRoutes, &rpcs);
  return rpcs;
}

TEST(AccessTest, TheAdminServiceIsForAdmins) {
  std::map<std::string, AccessClass> rpcs;
  AddRpcs(v1::DrainRequest::descriptor()->file(), kAdminRoutes, &rpcs);
  for (const auto& [rpc, access] : rpcs) EXPECT_EQ(access, AccessClass::kAdmin) << rpc;
}

TEST(AccessTest, EveryRpcAsksForItsClass) {
  ServiceUnderTest service;
  service.access().SetKeys(Keys());
  const auto channel = service.channel();
  EXPECT_GE(AllRpcs().size(), 14u);
  for (const auto& [rpc, wanted] : AllRpcs()) {
    for (const Shown& shown : kShown) {
      // Streams that are let in may go on for ever.
      const auto patience = std::chrono::milliseconds(shown.access >= wanted ? 300 : 10'000);
      const grpc::StatusCode code =
          Call(channel.get(), rpc, shown.authorization, patience).error_code();
      if (shown.access >= wanted) {
        EXPECT_NE(code, grpc::StatusCode::UNAUTHENTICATED) << rpc << " " << shown.authorization;
        EXPECT_NE(code, grpc::StatusCode::PERMISSION_DENIED) << rpc << " " << shown.authorization;
      } else {
        EXPECT_EQ(code,
                  shown.access == AccessClass::kPublic ? grpc::StatusCode::UNAUTHENTICATED
                                                       : grpc::StatusCode::PERMISSION_DENIED)
            << rpc << " " << shown.authorization;
      }
    }
  }
}

TEST(AccessTest, TwoKeysAreNone) {
  ServiceUnderTest service;
  service.access().SetKeys(Keys());
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer user-key");
  context.AddMetadata("authorization", "Bearer admin-key");
  v1::GetModelResponse response;
  const grpc::Status status = service.stub().GetModel(&context, v1::GetModelRequest(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

// Who guesses waits for the answer, however it asks; a right key never does.
TEST(AccessTest, GuessesWait) {
  ServiceUnderTest service(
      {.key_guard = {.num_free = 2, .step = absl::Hours(1), .longest = absl::Hours(1)}});
  service.access().SetKeys(Keys());
  const auto channel = service.channel();
  const auto call = [&](const std::string& method, const std::string& shown) {
    return Call(channel.get(),
                "/pagoda.v1.InferenceService/" + method,
                shown,
                std::chrono::milliseconds(300))
        .error_code();
  };
  // A key of too low a class is no guess.
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(call("GetModel", "Bearer metrics-key"), grpc::StatusCode::PERMISSION_DENIED);
  }
  EXPECT_EQ(call("GetModel", "Bearer wrong"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(call("StreamGenerate", "Bearer wrong"), grpc::StatusCode::UNAUTHENTICATED);
  for (const char* method : {"Generate", "StreamGenerate", "GetModel"}) {
    EXPECT_EQ(call(method, "Bearer wrong"), grpc::StatusCode::DEADLINE_EXCEEDED) << method;
    EXPECT_EQ(call("GetModel", "Bearer user-key"), grpc::StatusCode::OK);
  }
  // At the end nobody waits.
  service.access().StopDelays();
  EXPECT_EQ(call("Generate", "Bearer wrong"), grpc::StatusCode::UNAUTHENTICATED);
}

TEST(AccessTest, RefusalsAreCountedAndTellNoKey) {
  ServiceUnderTest service;
  service.access().SetKeys(Keys());
  const grpc::Status status =
      Call(service.channel().get(), "/pagoda.v1.InferenceService/Generate", "Bearer wrong-secret");
  EXPECT_THAT(status.error_message(), Not(HasSubstr("secret")));
  EXPECT_EQ(service.metrics().requests_rejected[static_cast<size_t>(RejectReason::kAuth)], 1u);
  EXPECT_EQ(service.metrics().of(Api::kGrpc).requests_received, 0u);
}

TEST(AccessTest, WithoutKeysEverybodyIsAUserAndNobodyAnAdmin) {
  ServerMetrics metrics;
  const AccessControl access(&metrics);
  EXPECT_FALSE(access.asks_for_keys());
  for (const char* shown : {"", "Bearer x"}) {
    EXPECT_EQ(access.Check(AccessClass::kUser, shown)->tenant.name, "");
    EXPECT_TRUE(absl::IsPermissionDenied(access.Check(AccessClass::kAdmin, shown).status()));
  }
}

// Takes an answer on the spot.
class FakePeer final : public HttpPeer {
 public:
  void Post(absl::AnyInvocable<void()> task) override { task(); }
  void Reply(HttpReply reply) override {
    MutexLock lock(&mutex_);
    status_ = reply.status;
  }
  void BeginStream() override {}
  bool Write(absl::string_view) override { return true; }
  void EndStream(std::string, bool) override { Reply({}); }
  void Abort() override { Reply({.status = 499}); }
  // 0: there is none yet.
  int status() const {
    MutexLock lock(&mutex_);
    return status_;
  }
  int WaitForStatus() {
    const auto is_there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return status_ != 0; };
    MutexLock lock(&mutex_, absl::Condition(&is_there));
    return status_;
  }

 private:
  mutable Mutex mutex_;
  int status_ ABSL_GUARDED_BY(mutex_) = 0;
};

class HttpAccessTest : public ::testing::Test {
 protected:
  std::shared_ptr<FakePeer> Ask(const std::string& method,
                                const std::string& path,
                                const std::string& shown,
                                const std::string& address = "ipv4:192.0.2.1:4711") {
    const auto peer = std::make_shared<FakePeer>();
    routes_.Handle({.method = method,
                    .path = path,
                    .authorization = shown,
                    .content_type = "application/json",
                    .peer = address,
                    .body = "{}"},
                   peer);
    return peer;
  }
  int StatusOf(const std::string& method, const std::string& path, const std::string& shown) {
    return Ask(method, path, shown)->WaitForStatus();
  }

  explicit HttpAccessTest(KeyGuard::Options key_guard = {.num_free = 1e9})
      : service_({.key_guard = key_guard}) {}

  ServiceUnderTest service_;
  engine::EngineMetrics engine_metrics_;
  const HttpRoutes routes_{
      {.services = &service_.services(),
       .text_pool = &service_.text_pool(),
       .state = &service_.state(),
       .metrics = std::make_shared<MetricsCollector>(
           &engine_metrics_, &service_.metrics(), [] { return ServingState::kReady; })}};
};

TEST_F(HttpAccessTest, EveryRouteAsksForItsClass) {
  service_.access().SetKeys(Keys());
  std::vector<HttpRoute> routes(ServedHttpRoutes().begin(), ServedHttpRoutes().end());
  routes.emplace_back(AccessClass::kUser, "GET", "/v1/models/fake");
  for (const char* unknown : {"/", "/v1/embeddings", "/no/such/route", "/metrics/", "/health/x"})
    routes.emplace_back(AccessClass::kUser, "POST", unknown);
  routes[routes.size() - 5] = HttpRoute(AccessClass::kPublic, "POST", "/");
  for (const HttpRoute& route : routes) {
    for (const Shown& shown : kShown) {
      const int status =
          StatusOf(std::string(route.method), std::string(route.path), shown.authorization);
      if (shown.access >= route.access) {
        EXPECT_NE(status, 401) << route.path << " " << shown.authorization;
        EXPECT_NE(status, 403) << route.path << " " << shown.authorization;
      } else {
        EXPECT_EQ(status, shown.access == AccessClass::kPublic ? 401 : 403)
            << route.path << " " << shown.authorization;
      }
    }
  }
}

class HttpGuessesTest : public HttpAccessTest {
 protected:
  HttpGuessesTest()
      : HttpAccessTest({.num_free = 2, .step = absl::Hours(1), .longest = absl::Hours(1)}) {}
};

TEST_F(HttpGuessesTest, Wait) {
  service_.access().SetKeys(Keys());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(StatusOf("GET", "/v1/models", "Bearer wrong"), 401);
  const auto guess = Ask("GET", "/v1/models", "Bearer wrong");
  EXPECT_EQ(guess->status(), 0);
  EXPECT_EQ(StatusOf("GET", "/v1/models", "Bearer user-key"), 200);
  EXPECT_EQ(StatusOf("GET", "/v1/models", "Bearer metrics-key"), 403);
  // From another address a mistake is the first, but not from another port.
  EXPECT_EQ(Ask("GET", "/v1/models", "Bearer x", "ipv4:192.0.2.2:4711")->WaitForStatus(), 401);
  const auto other_port = Ask("GET", "/v1/models", "Bearer wrong", "ipv4:192.0.2.1:9");
  EXPECT_EQ(other_port->status(), 0);
  service_.access().StopDelays();
  EXPECT_EQ(guess->WaitForStatus(), 401);
  EXPECT_EQ(other_port->WaitForStatus(), 401);
}

TEST_F(HttpAccessTest, KeysMayChange) {
  EXPECT_EQ(StatusOf("GET", "/v1/models", ""), 200);
  service_.access().SetKeys(Keys());
  EXPECT_EQ(StatusOf("GET", "/v1/models", ""), 401);
  EXPECT_EQ(StatusOf("GET", "/v1/models", "Bearer blue-key"), 200);
  service_.access().SetKeys(*ApiKeys::Parse("other"));
  EXPECT_EQ(StatusOf("GET", "/v1/models", "Bearer blue-key"), 401);
  EXPECT_EQ(StatusOf("GET", "/v1/models", "Bearer other"), 200);
}

// The engine is told the tenant of the key, and ids of one tenant mean nothing to another.
TEST(AccessTest, TheTenantIsThatOfTheKey) {
  ServiceUnderTest service;
  service.access().SetKeys(Keys());
  v1::StreamGenerateRequest request;
  request.mutable_prompt()->set_text("hi");
  request.set_request_id("mine");
  std::map<std::string, engine::RequestKey> keys;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::StreamGenerateResponse>>> readers;
  for (const char* tenant : {"red", "blue"}) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->AddMetadata("authorization",
                                 tenant[0] == 'r' ? "Bearer user-key" : "Bearer blue-key");
    readers.push_back(service.stub().StreamGenerate(contexts.back().get(), request));
    const engine::Request submitted = service.engine().TakeRequest();
    EXPECT_EQ(submitted.tenant.name, tenant);
    EXPECT_NEAR(submitted.tenant.queue_share, 1.0 / 3, 1e-9);
    keys[tenant] = submitted.key;
  }
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer blue-key");
  engine_pb::AbortRequest abort;
  abort.add_request_ids("mine");
  engine_pb::AbortResponse aborted;
  EXPECT_TRUE(service.engine_stub().Abort(&context, abort, &aborted).ok());
  EXPECT_TRUE(service.engine().WaitForCancel(keys["blue"]));
  EXPECT_FALSE(service.engine().WasCancelled(keys["red"]));
  for (const auto& one : contexts) one->TryCancel();
  for (const auto& reader : readers) reader->Finish();
}

}  // namespace
}  // namespace pagoda::daemon
