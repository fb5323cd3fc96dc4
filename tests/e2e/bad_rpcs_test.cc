// Every RPC of both services with every field of its request missing, of the wrong type and of
// extreme values, as generated from the descriptors: served, or refused as the client's fault by
// the name of the field, while a stream beside goes on as ever.

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/e2e/bad_messages.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/neighbour.h"
#include "tests/e2e/test_daemon.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace pagoda::e2e::bad_rpcs_test {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using grpc::StatusCode;

constexpr absl::Duration kPatience = absl::Seconds(60);
// Events for ever are read for so long.
constexpr char kEndlessMethod[] = "SubscribeKvEvents";

// One call, its answers dropped.
grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel,
                  const std::string& method,
                  const std::string& bytes,
                  bool is_endless) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  const auto stream = stub.PrepareCall(&context, method, &queue);
  const auto succeeds = [&queue] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  bool goes_on = succeeds();
  grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  if (goes_on) {
    stream->WriteLast(request, grpc::WriteOptions(), nullptr);
    goes_on = succeeds();
  }
  while (goes_on) {
    grpc::ByteBuffer reply;
    stream->Read(&reply, nullptr);
    goes_on = succeeds();
    if (is_endless) context.TryCancel();
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  succeeds();
  return status;
}

// What a request would be answered well with.
std::vector<std::unique_ptr<Message>> GoodRequests(const MethodDescriptor& method) {
  std::vector<std::unique_ptr<Message>> good;
  const auto add = [&](const auto& message) {
    good.emplace_back(message.New());
    good.back()->CopyFrom(message);
  };
  const bool streams = method.name() == "StreamGenerate";
  if (method.full_name() == "vllm.grpc.engine.VllmEngine.Generate") {
    vllm::grpc::engine::GenerateRequest request;
    request.mutable_sampling_params()->set_max_tokens(2);
    request.set_text("Once");
    add(request);
    request.mutable_tokenized()->add_input_ids(5);
    request.set_stream(true);
    add(request);
  } else if (streams || method.name() == "Generate") {
    for (v1::GenerateRequest request : {TextRequest("Once", 2), IdsRequest({5, 6}, 2)})
      streams ? add(AsStream(request)) : add(request);
    v1::GenerateRequest request = TextRequest("", 2);
    v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
    message->set_role("user");
    message->add_content()->set_text("Hello");
    streams ? add(AsStream(request)) : add(request);
  } else {
    good.emplace_back(google::protobuf::MessageFactory::generated_factory()
                          ->GetPrototype(method.input_type())
                          ->New());
  }
  return good;
}

bool IsWithin(absl::string_view inner, absl::string_view outer) {
  if (!absl::ConsumePrefix(&inner, outer)) return false;
  return inner.empty() || inner[0] == '.' || inner[0] == '[';
}

// Whether an error that names `told` is of a request whose `field` was changed: that one, what
// holds it or what it holds; of a message that the good request does not have, any member; or one
// of the two fields that contradict each other.
bool Concerns(const std::string& told, const BadMessage& bad) {
  const std::string& field = bad.field;
  if (told.empty()) return false;
  if (IsWithin(told, field) || IsWithin(field, told)) return true;
  if (!bad.added.empty() && IsWithin(told, bad.added)) return true;
  const std::multimap<std::string, std::string> kPartners = {
      {"stopping.max_tokens", "stopping.min_tokens"},
      {"output.n", "output.best_of"},
      {"prompt.token_ids", "prompt.text"},
      {"prompt.chat", "prompt.add_special_tokens"},
      {"prompt.chat", "prompt.parse_special_tokens"},
      {"sampling_params.max_tokens", "sampling_params.min_tokens"},
      {"tokenized", "input"},
      {"text", "input"},
      {"prompt", "prompt.add_special_tokens"}};
  for (const auto& [one, other] : kPartners) {
    if (IsWithin(field, one) && IsWithin(told, other)) return true;
    if (IsWithin(field, other) && IsWithin(told, one)) return true;
  }
  return false;
}

// Empty: as it should be; else what is wrong with the answer.
std::string Fault(const MethodDescriptor& method,
                  const BadMessage& bad,
                  const grpc::Status& status) {
  const std::string told = FirstViolation(status);
  switch (status.error_code()) {
    case StatusCode::OK:
      return "";
    case StatusCode::INVALID_ARGUMENT:
      if (bad.is_malformed || Concerns(told, bad)) return "";
      return "names another field";
    case StatusCode::NOT_FOUND:
      return bad.field == "model" ? "" : "not found";
    case StatusCode::UNIMPLEMENTED:
      return method.name() == "Embed" ? "" : "not implemented";
    case StatusCode::FAILED_PRECONDITION:
      // No token continues what the constraint asks for.
      return absl::StartsWith(bad.field, "sampling") ? "" : "failed precondition";
    case StatusCode::CANCELLED:
      return method.name() == kEndlessMethod ? "" : "cancelled";
    default:
      return "not the client's fault";
  }
}

class BadRpcs : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto daemon = TestDaemon::Start(
        {.flags = {
             "--device=sim", "--sim-base-us=0", "--sim-per-token-us=0", "--max-model-len=256"}});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = daemon->release();
  }
  static void TearDownTestSuite() { delete daemon_; }

  static void TryService(const char* name) {
    // Else it says so for each text that is no UTF-8.
    const google::protobuf::LogSilencer silence;
    const ServiceDescriptor* const service =
        DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    Neighbour neighbour(*daemon_);
    const auto channel =
        grpc::CreateChannel(daemon_->grpc_address(), grpc::InsecureChannelCredentials());
    int num_calls = 0, num_refused = 0;
    for (int i = 0; i < service->method_count(); ++i) {
      const MethodDescriptor& method = *service->method(i);
      const std::string path = absl::StrCat("/", name, "/", method.name());
      const bool is_endless = method.name() == kEndlessMethod;
      for (const auto& good : GoodRequests(method)) {
        const grpc::Status fine = Call(channel, path, good->SerializeAsString(), is_endless);
        EXPECT_EQ(Fault(method, {}, fine), "") << path << ": " << fine.error_message();
        for (const BadMessage& bad : BadMessages(*good)) {
          const grpc::Status status = Call(channel, path, bad.bytes, is_endless);
          ++num_calls;
          num_refused += status.ok() ? 0 : 1;
          const std::string fault = Fault(method, bad, status);
          EXPECT_EQ(fault, "") << path << " with " << bad.field << ": " << bad.what << ", answered "
                               << status.error_code() << " " << status.error_message();
        }
      }
    }
    neighbour.Stop();
    EXPECT_GT(num_calls, service->method_count());
    RecordProperty("calls", num_calls);
    RecordProperty("refused", num_refused);
    std::printf("%s: %d calls, %d refused\n", name, num_calls, num_refused);
  }

  static TestDaemon* daemon_;
};

TestDaemon* BadRpcs::daemon_ = nullptr;

TEST_F(BadRpcs, EveryFieldOfInferenceService) { TryService("pagoda.v1.InferenceService"); }

TEST_F(BadRpcs, EveryFieldOfTheEngineProtocol) { TryService("vllm.grpc.engine.VllmEngine"); }

}  // namespace
}  // namespace pagoda::e2e::bad_rpcs_test
