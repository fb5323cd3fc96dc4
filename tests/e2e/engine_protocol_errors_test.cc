// Every field of the engine protocol's Generate with values that it cannot have: always an answer
// that blames the request and names the field, never INTERNAL or UNKNOWN, and the daemon serves on.

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace pagoda::e2e::engine_protocol_errors_test {
namespace {

namespace engine_pb = ::vllm::grpc::engine;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A field and the message that holds it: "sampling_params" and temperature.
struct FieldPlace {
  const FieldDescriptor* parent = nullptr;  // null: the request itself
  const FieldDescriptor* field = nullptr;

  std::string Path() const {
    return parent == nullptr ? field->name() : absl::StrCat(parent->name(), ".", field->name());
  }
};

std::vector<FieldPlace> AllFields() {
  std::vector<FieldPlace> places;
  const auto* const request = engine_pb::GenerateRequest::descriptor();
  for (int i = 0; i < request->field_count(); ++i) {
    const FieldDescriptor* const field = request->field(i);
    places.push_back({nullptr, field});
    if (field->message_type() == nullptr || field->is_repeated()) continue;
    for (int j = 0; j < field->message_type()->field_count(); ++j)
      places.push_back({field, field->message_type()->field(j)});
  }
  return places;
}

constexpr int kNumVariants = 9;

template <typename T>
T Pick(const std::vector<T>& values, int variant) {
  return values[static_cast<size_t>(variant) % values.size()];
}

std::string ExtremeString(int variant) {
  return Pick<std::string>({"",
                            std::string(1, '\0'),
                            "\xff\xfe",
                            "((((",
                            "{\"type\": 7}",
                            std::string(1 << 16, 'a'),
                            std::string(10'000, '('),
                            "\\p{L}{1000}{1000}",
                            "root ::= root"},
                           variant);
}

// Sets one value, or adds one, of a field.
void SetExtreme(Message* message, const FieldDescriptor* field, int variant) {
  const Reflection* const reflection = message->GetReflection();
  const bool repeated = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      const auto value =
          Pick<int32_t>({-1, INT32_MIN, INT32_MAX, 0, 1, -2, 100'000, 21, 4096}, variant);
      repeated ? reflection->AddInt32(message, field, value)
               : reflection->SetInt32(message, field, value);
      break;
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      const auto value =
          Pick<uint32_t>({0, UINT32_MAX, INT32_MAX, 1u << 31, 1, 4095, 4096, 100'000, 2}, variant);
      repeated ? reflection->AddUInt32(message, field, value)
               : reflection->SetUInt32(message, field, value);
      break;
    }
    case FieldDescriptor::CPPTYPE_FLOAT: {
      using Limits = std::numeric_limits<float>;
      const auto value = Pick<float>({Limits::quiet_NaN(),
                                      Limits::infinity(),
                                      -Limits::infinity(),
                                      Limits::max(),
                                      Limits::denorm_min(),
                                      -1,
                                      -0.0f,
                                      1e-30f,
                                      3},
                                     variant);
      repeated ? reflection->AddFloat(message, field, value)
               : reflection->SetFloat(message, field, value);
      break;
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      reflection->SetBool(message, field, variant % 2 == 0);
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      repeated ? reflection->AddString(message, field, ExtremeString(variant))
               : reflection->SetString(message, field, ExtremeString(variant));
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      Message* const inner = repeated ? reflection->AddMessage(message, field)
                                      : reflection->MutableMessage(message, field);
      for (int i = 0; i < inner->GetDescriptor()->field_count(); ++i)
        SetExtreme(inner, inner->GetDescriptor()->field(i), variant);
      break;
    }
    default:
      ADD_FAILURE() << "a kind of field that this test does not know: " << field->full_name();
  }
}

void SetExtreme(engine_pb::GenerateRequest* request, const FieldPlace& place, int variant) {
  Message* const message = place.parent == nullptr
                               ? request
                               : request->GetReflection()->MutableMessage(request, place.parent);
  const int count = place.field->is_repeated() && variant % 3 == 2 ? 300 : 1;
  for (int i = 0; i < count; ++i) SetExtreme(message, place.field, variant + i);
}

class EngineProtocolErrors : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto daemon = TestDaemon::Start({.flags = {"--max-model-len=64"}});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = daemon->release();
  }
  static void TearDownTestSuite() { delete daemon_; }

  EngineProtocolErrors()
      : stub_(engine_pb::VllmEngine::NewStub(
            grpc::CreateChannel(daemon_->grpc_address(), grpc::InsecureChannelCredentials()))) {}
  ~EngineProtocolErrors() override {
    EXPECT_TRUE(Call(Good()).ok());
    EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(10), [] {
      return daemon_->Metric("pagoda_requests_running").value_or(-1) == 0 &&
             daemon_->Metric("pagoda_kv_blocks{pool=\"0\",state=\"used\"}").value_or(-1) == 0;
    }));
    EXPECT_EQ(daemon_->Metric("pagoda_worker_restarts_total{").value_or(0), 0);
  }

  static engine_pb::GenerateRequest Good() {
    engine_pb::GenerateRequest request;
    for (const uint32_t id : {500u, 501u, 502u}) request.mutable_tokenized()->add_input_ids(id);
    request.mutable_sampling_params()->set_max_tokens(2);
    return request;
  }
  grpc::Status Call(const engine_pb::GenerateRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(120)));
    const auto reader = stub_->Generate(&context, request);
    engine_pb::GenerateResponse message;
    while (reader->Read(&message)) {
    }
    return reader->Finish();
  }

  static TestDaemon* daemon_;
  std::unique_ptr<engine_pb::VllmEngine::Stub> stub_;
  // Protobuf logs each string that is not UTF-8.
  const google::protobuf::LogSilencer silencer_;
};
TestDaemon* EngineProtocolErrors::daemon_ = nullptr;

void ExpectAcceptable(const grpc::Status& status, const std::string& what) {
  EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
              status.error_code() == grpc::StatusCode::FAILED_PRECONDITION)
      << what << ": " << status.error_code() << " " << status.error_message();
}

TEST_F(EngineProtocolErrors, EachFieldAlone) {
  int num_refused = 0;
  for (const FieldPlace& place : AllFields()) {
    for (int variant = 0; variant < kNumVariants; ++variant) {
      engine_pb::GenerateRequest request = Good();
      SetExtreme(&request, place, variant);
      const grpc::Status status = Call(request);
      const std::string what = absl::StrCat(place.Path(), " variant ", variant);
      ExpectAcceptable(status, what);
      if (status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) continue;
      ++num_refused;
      // A message that is refused is named itself, whatever it holds.
      const bool is_refused_whole =
          place.parent != nullptr && place.parent->name() == "kv_transfer_params";
      const std::string name = is_refused_whole ? place.parent->name() : place.Path();
      EXPECT_TRUE(absl::StrContains(status.error_message(), name))
          << what << ": " << status.error_message();
    }
  }
  EXPECT_GT(num_refused, 100);
}

TEST_F(EngineProtocolErrors, SeveralFieldsAtOnce) {
  const std::vector<FieldPlace> places = AllFields();
  std::mt19937 random(20);
  for (int i = 0; i < 150; ++i) {
    engine_pb::GenerateRequest request = Good();
    const uint32_t num_fields = 2 + random() % 4;
    std::string what;
    for (uint32_t j = 0; j < num_fields; ++j) {
      const FieldPlace& place = places[random() % places.size()];
      const int variant = static_cast<int>(random() % kNumVariants);
      SetExtreme(&request, place, variant);
      absl::StrAppend(&what, place.Path(), "/", variant, " ");
    }
    ExpectAcceptable(Call(request), what);
  }
}

// Bytes that are no such message.
TEST_F(EngineProtocolErrors, Garbage) {
  const auto channel =
      grpc::CreateChannel(daemon_->grpc_address(), grpc::InsecureChannelCredentials());
  grpc::GenericStub generic(channel);
  std::mt19937 random(21);
  for (int i = 0; i < 200; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto call =
        generic.PrepareUnaryCall(&context, "/vllm.grpc.engine.VllmEngine/Abort", request, &queue);
    grpc::Status status;
    call->StartCall();
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    ExpectAcceptable(status, absl::StrCat("garbage ", i));
  }
}

}  // namespace
}  // namespace pagoda::e2e::engine_protocol_errors_test
