#include "daemon/server/inference_service.h"

#include <random>
#include <thread>

#include "daemon/server/rpc_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/service_under_test.h"

namespace pagoda::daemon {
namespace {

using ::testing::HasSubstr;
using Reader = std::unique_ptr<grpc::ClientReader<v1::StreamGenerateResponse>>;

v1::StreamGenerateRequest StreamRequest(const std::string& text = "hi") {
  v1::StreamGenerateRequest request;
  request.mutable_prompt()->set_text(text);
  return request;
}

// One stream of the client's and what the engine was asked for it.
struct OpenStream {
  explicit OpenStream(ServiceUnderTest* service,
                      const v1::StreamGenerateRequest& request = StreamRequest())
      : reader(service->stub().StreamGenerate(&context, request)),
        submitted(service->engine().TakeRequest()) {}

  v1::StreamGenerateResponse Read() {
    v1::StreamGenerateResponse message;
    EXPECT_TRUE(reader->Read(&message));
    return message;
  }
  // Reads what is left.
  grpc::Status Finish() {
    v1::StreamGenerateResponse message;
    while (reader->Read(&message)) rest.push_back(message);
    return reader->Finish();
  }

  grpc::ClientContext context;
  Reader reader;
  engine::Request submitted;
  std::vector<v1::StreamGenerateResponse> rest;
};

TEST(StreamGenerateTest, StartedThenDeltasThenFinished) {
  ServiceUnderTest service;
  OpenStream stream(&service);
  service.Deliver(StartedDelta(stream.submitted, "a"));
  const v1::Started started = stream.Read().started();
  EXPECT_EQ(started.prompt_tokens(), 2u);
  EXPECT_EQ(started.cached_tokens(), 1u);
  EXPECT_EQ(started.queue_duration().seconds(), 1);
  EXPECT_EQ(started.queue_duration().nanos(), 500'000'000);
  EXPECT_THAT(started.request_id(), ::testing::StartsWith("pagoda-"));
  EXPECT_EQ(stream.Read().delta().text(), "a");
  service.Deliver(TextDelta(stream.submitted.key, 0, "b"));
  EXPECT_EQ(stream.Read().delta().text(), "b");
  service.Deliver(FinishedDelta(stream.submitted.key, 0, /*last=*/true));
  const v1::Finished finished = stream.Read().finished();
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finished.usage().prompt_tokens(), 2u);
  EXPECT_EQ(finished.usage().completion_tokens(), 3u);
  EXPECT_EQ(finished.usage().cached_tokens(), 1u);
  EXPECT_EQ(finished.timings().time_to_first_token().seconds(), 2);
  EXPECT_EQ(finished.timings().total_duration().seconds(), 3);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_TRUE(stream.rest.empty());
  EXPECT_TRUE(Eventually([&] { return service.calls().num_open() == 0; }));
}

// B047: constraints that take long wait for each other, and nobody else for them.
TEST(StreamGenerateTest, B047NewConstraintsHoldUpNobodyElse) {
  constexpr int kBombs = 4;
  std::string pattern;
  for (int i = 0; i < 20'000; ++i) pattern += "a?";
  v1::StreamGenerateRequest bomb = StreamRequest("bomb");
  bomb.mutable_sampling()->set_regex(pattern + std::string(20'000, 'a'));
  ServiceUnderTest service;
  std::vector<grpc::ClientContext> contexts(kBombs);
  std::vector<Reader> readers;
  for (grpc::ClientContext& context : contexts)
    readers.push_back(service.stub().StreamGenerate(&context, bomb));
  OpenStream plain(&service);
  EXPECT_EQ(plain.submitted.prompt.size(), 2u);
  contexts[kBombs - 1].TryCancel();
  service.Deliver(FinishedDelta(plain.submitted.key, 0, /*last=*/true));
  EXPECT_TRUE(plain.Finish().ok());
  for (int i = 0; i < kBombs; ++i) {
    v1::StreamGenerateResponse message;
    EXPECT_FALSE(readers[i]->Read(&message));
    const grpc::Status status = readers[i]->Finish();
    if (i == kBombs - 1) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
      EXPECT_THAT(status.error_message(), HasSubstr("sampling.regex: is too complex"));
    }
  }
  EXPECT_TRUE(Eventually([&] { return service.calls().num_open() == 0; }));
  // One that is small goes on to the engine.
  v1::StreamGenerateRequest small = StreamRequest();
  small.mutable_sampling()->set_regex("a+");
  OpenStream constrained(&service, small);
  EXPECT_NE(constrained.submitted.sampling.constraint, nullptr);
  service.Deliver(FinishedDelta(constrained.submitted.key, 0, /*last=*/true));
  EXPECT_TRUE(constrained.Finish().ok());
}

TEST(StreamGenerateTest, OutputThatWaitsIsMerged) {
  ServiceUnderTest service;
  OpenStream stream(&service);
  service.Deliver(StartedDelta(stream.submitted, "a"));
  // Nothing is read, so nothing but the first message leaves.
  for (const char* text : {"b", "c", "d"})
    service.Deliver(TextDelta(stream.submitted.key, 0, text));
  service.Deliver(FinishedDelta(stream.submitted.key, 0, true));
  ASSERT_TRUE(Eventually(
      [&] { return service.metrics().of(Api::kGrpc).stream_coalesced_tokens.load() == 3; }));
  EXPECT_TRUE(stream.Finish().ok());
  ASSERT_EQ(stream.rest.size(), 3u);
  EXPECT_TRUE(stream.rest[0].has_started());
  EXPECT_EQ(stream.rest[1].delta().text(), "abcd");
  EXPECT_EQ(stream.rest[1].delta().token_ids_size(), 4);
  EXPECT_TRUE(stream.rest[2].has_finished());
}

TEST(StreamGenerateTest, SequencesKeepTheirOwnDeltas) {
  ServiceUnderTest service;
  v1::StreamGenerateRequest request = StreamRequest();
  request.mutable_output()->set_n(2);
  OpenStream stream(&service, request);
  const engine::RequestKey key = stream.submitted.key;
  service.Deliver(StartedDelta(stream.submitted, "a"));
  service.Deliver(TextDelta(key, 1, "x"));
  service.Deliver(TextDelta(key, 0, "b"));
  service.Deliver(FinishedDelta(key, 1, false, engine::FinishReason::kStop));
  service.Deliver(TextDelta(key, 0, "c"));
  service.Deliver(FinishedDelta(key, 0, true));
  EXPECT_TRUE(stream.Finish().ok());
  std::string text[2];
  bool finished[2] = {false, false};
  for (const v1::StreamGenerateResponse& message : stream.rest) {
    if (message.has_delta()) {
      EXPECT_FALSE(finished[message.delta().index()]);
      text[message.delta().index()] += message.delta().text();
    }
    if (message.has_finished()) finished[message.finished().index()] = true;
  }
  EXPECT_EQ(text[0], "abc");
  EXPECT_EQ(text[1], "x");
  EXPECT_TRUE(finished[0] && finished[1]);
}

TEST(StreamGenerateTest, EchoComesFirstForEverySequence) {
  ServiceUnderTest service;
  v1::StreamGenerateRequest request = StreamRequest("say: ");
  request.mutable_output()->set_n(2);
  request.mutable_output()->set_echo(true);
  OpenStream stream(&service, request);
  service.Deliver(StartedDelta(stream.submitted, "a"));
  service.Deliver(FinishedDelta(stream.submitted.key, 0, false));
  service.Deliver(FinishedDelta(stream.submitted.key, 1, true));  // and nothing before it
  EXPECT_TRUE(stream.Finish().ok());
  std::string text[2];
  for (const auto& message : stream.rest) {
    if (message.has_delta()) text[message.delta().index()] += message.delta().text();
  }
  EXPECT_EQ(text[0], "say: a");
  EXPECT_EQ(text[1], "say: ");
}

TEST(StreamGenerateTest, LongPromptLogprobsComeInPieces) {
  ServiceUnderTest service;
  v1::StreamGenerateRequest request = StreamRequest();
  request.mutable_output()->set_prompt_logprobs(20);
  OpenStream stream(&service, request);
  engine::OutputDelta delta = StartedDelta(stream.submitted, "a");
  constexpr int kPositions = 8000;
  for (int i = 0; i < kPositions; ++i) {
    engine::TokenLogprobs& position = delta.prompt_logprobs.emplace_back();
    position.token = {.token = i % 256, .logprob = -1.0f};
    position.rank = i == 0 ? 0 : 1;
    for (int k = 0; i > 0 && k < 20; ++k) position.top.push_back({k, -2.0f});
  }
  service.Deliver(std::move(delta));
  service.Deliver(FinishedDelta(stream.submitted.key, 0, true));
  EXPECT_TRUE(stream.Finish().ok());
  int num_positions = 0;
  size_t num_pieces = 0;
  for (const auto& message : stream.rest) {
    EXPECT_LT(message.ByteSizeLong(), size_t{2} << 20);
    num_pieces += message.delta().prompt_logprobs_size() > 0 ? 1 : 0;
    for (const v1::TokenLogprobs& position : message.delta().prompt_logprobs()) {
      EXPECT_EQ(position.token().has_logprob(), num_positions > 0);
      EXPECT_EQ(position.top_size(), num_positions > 0 ? 20 : 0);
      EXPECT_EQ(position.token().token_id(), static_cast<uint32_t>(num_positions % 256));
      EXPECT_EQ(position.token().token_bytes(),
                std::string(1, static_cast<char>(num_positions % 256)));
      ++num_positions;
    }
  }
  EXPECT_EQ(num_positions, kPositions);
  EXPECT_GT(num_pieces, 1u);
}

// B017: what was made is delivered, then the true status; never stop or length.
TEST(StreamGenerateTest, B017FailureAfterTheFirstToken) {
  ServiceUnderTest service;
  OpenStream stream(&service);
  service.Deliver(StartedDelta(stream.submitted, "a"));
  service.Deliver(FinishedDelta(stream.submitted.key,
                                0,
                                true,
                                engine::FinishReason::kError,
                                absl::InternalError("non-finite logits")));
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(status.error_message(), "non-finite logits");
  ASSERT_EQ(stream.rest.size(), 3u);
  EXPECT_EQ(stream.rest[1].delta().text(), "a");
  EXPECT_EQ(stream.rest[2].finished().reason(), v1::FINISH_REASON_ERROR);
  const auto code = static_cast<size_t>(grpc::StatusCode::INTERNAL);
  const auto outcome = static_cast<size_t>(engine::Outcome::kError);
  EXPECT_EQ(service.metrics().of(Api::kGrpc).requests_finished[outcome][code].load(), 1u);
}

TEST(StreamGenerateTest, OneFailedSequenceDoesNotEndTheOthers) {
  ServiceUnderTest service;
  v1::StreamGenerateRequest request = StreamRequest();
  request.mutable_output()->set_n(2);
  OpenStream stream(&service, request);
  const engine::RequestKey key = stream.submitted.key;
  service.Deliver(StartedDelta(stream.submitted, "a"));
  service.Deliver(
      FinishedDelta(key, 0, false, engine::FinishReason::kError, absl::InternalError("one")));
  service.Deliver(TextDelta(key, 1, "still here"));
  service.Deliver(FinishedDelta(key, 1, true));
  EXPECT_EQ(stream.Finish().error_message(), "one");
  std::string text;
  for (const auto& message : stream.rest) {
    if (message.delta().index() == 1) text += message.delta().text();
  }
  EXPECT_EQ(text, "still here");
}

TEST(StreamGenerateTest, CancelReachesTheEngine) {
  ServiceUnderTest service;
  OpenStream stream(&service);
  service.Deliver(StartedDelta(stream.submitted, "a"));
  stream.Read();
  stream.context.TryCancel();
  EXPECT_TRUE(service.engine().WaitForCancel(stream.submitted.key));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return service.calls().num_open() == 0; }));
  // Output that was on its way finds nobody.
  service.Deliver(FinishedDelta(stream.submitted.key, 0, true, engine::FinishReason::kCancelled));
}

TEST(StreamGenerateTest, CancelWithAWriteInFlight) {
  ServiceUnderTest service;
  OpenStream stream(&service);
  service.Deliver(StartedDelta(stream.submitted, "a"));
  ASSERT_TRUE(
      Eventually([&] { return service.metrics().of(Api::kGrpc).stream_messages.load() == 1; }));
  stream.context.TryCancel();
  EXPECT_TRUE(service.engine().WaitForCancel(stream.submitted.key));
  EXPECT_TRUE(Eventually([&] { return service.calls().num_open() == 0; }));
}

TEST(StreamGenerateTest, DeadlineIsTheEnginesToKeep) {
  ServiceUnderTest service;
  v1::StreamGenerateRequest request = StreamRequest();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  Reader reader = service.stub().StreamGenerate(&context, request);
  const engine::Request submitted = service.engine().TakeRequest();
  ASSERT_TRUE(submitted.deadline_ns.has_value());
  EXPECT_GT(*submitted.deadline_ns, submitted.arrival_ns);
  v1::StreamGenerateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return service.calls().num_open() == 0; }));
  EXPECT_FALSE(service.engine().WasCancelled(submitted.key));  // it ends the request by itself
  const auto code = static_cast<size_t>(grpc::StatusCode::DEADLINE_EXCEEDED);
  const auto outcome = static_cast<size_t>(engine::Outcome::kDeadline);
  EXPECT_EQ(service.metrics().of(Api::kGrpc).requests_finished[outcome][code].load(), 1u);
}

// A message that waits for one that is never to come would hang here.
TEST(StreamGenerateTest, EachMessageIsOnTheWireAtOnce) {
  std::string dir = "/tmp/pagoda-calls-XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const std::string address = "unix:" + dir + "/s";
  {
    ServiceUnderTest service({.address = address});
    const auto stub = v1::InferenceService::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    const absl::Time start = absl::Now();
    grpc::ClientContext context;
    Reader reader = stub->StreamGenerate(&context, StreamRequest());
    const engine::Request submitted = service.engine().TakeRequest();
    v1::StreamGenerateResponse message;
    service.Deliver(StartedDelta(submitted, "a"));
    ASSERT_TRUE(reader->Read(&message));
    EXPECT_TRUE(message.has_started());
    ASSERT_TRUE(reader->Read(&message));
    EXPECT_EQ(message.delta().text(), "a");
    service.Deliver(TextDelta(submitted.key, 0, "b"));
    ASSERT_TRUE(reader->Read(&message));
    EXPECT_EQ(message.delta().text(), "b");
    engine::OutputDelta last = FinishedDelta(submitted.key, 0, true);
    last.text = "c";
    last.tokens = {'c'};
    service.Deliver(std::move(last));
    ASSERT_TRUE(reader->Read(&message));
    EXPECT_EQ(message.delta().text(), "c");
    ASSERT_TRUE(reader->Read(&message));
    EXPECT_TRUE(message.has_finished());
    EXPECT_FALSE(reader->Read(&message));
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  }
  rmdir(dir.c_str());
}

// ---- B104: readers that do not read

TEST(StreamGenerateTest, B104TooMuchOutputWaiting) {
  ServiceUnderTest service({.max_stream_buffer_bytes = 1000});
  OpenStream stream(&service);
  OpenStream reading(&service);
  service.Deliver(StartedDelta(stream.submitted, "a"));
  service.Deliver(StartedDelta(reading.submitted, "a"));
  for (int i = 0; i < 100; ++i) {
    service.Deliver(TextDelta(stream.submitted.key, 0, "0123456789"));
    service.Deliver(TextDelta(reading.submitted.key, 0, "x"));
    reading.Read();
  }
  EXPECT_TRUE(service.engine().WaitForCancel(stream.submitted.key));
  EXPECT_FALSE(service.engine().WasCancelled(reading.submitted.key));
  EXPECT_EQ(service.metrics().of(Api::kGrpc).stream_stalls.load(), 1u);
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  service.Deliver(FinishedDelta(reading.submitted.key, 0, true));
  EXPECT_TRUE(reading.Finish().ok());
}

TEST(StreamGenerateTest, B104NothingTakenForTooLong) {
  FakeClock clock;
  ServiceUnderTest service({.clock = &clock});
  OpenStream stream(&service);
  service.Deliver(StartedDelta(stream.submitted, "a"));
  service.Deliver(TextDelta(stream.submitted.key, 0, "b"));
  ASSERT_TRUE(Eventually(
      [&] { return service.metrics().of(Api::kGrpc).stream_coalesced_tokens.load() == 1; }));
  clock.Advance(absl::Seconds(29));
  absl::SleepFor(absl::Milliseconds(150));  // a sweep passes
  EXPECT_FALSE(service.engine().WasCancelled(stream.submitted.key));
  clock.Advance(absl::Seconds(2));
  EXPECT_TRUE(service.engine().WaitForCancel(stream.submitted.key));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(StreamGenerateTest, AReaderThatCatchesUpIsLeftAlone) {
  FakeClock clock;
  ServiceUnderTest service({.clock = &clock});
  OpenStream stream(&service);
  service.Deliver(StartedDelta(stream.submitted, "a"));
  service.Deliver(TextDelta(stream.submitted.key, 0, "b"));
  ASSERT_TRUE(Eventually(
      [&] { return service.metrics().of(Api::kGrpc).stream_coalesced_tokens.load() == 1; }));
  clock.Advance(absl::Seconds(29));
  stream.Read();
  stream.Read();
  clock.Advance(absl::Seconds(29));
  service.Deliver(FinishedDelta(stream.submitted.key, 0, true));
  EXPECT_TRUE(stream.Finish().ok());
}

// ---- Unary

TEST(GenerateTest, B046LiveRequestIdIsTakenOnce) {
  ServiceUnderTest service;
  v1::StreamGenerateRequest request = StreamRequest();
  request.set_request_id("mine");
  {
    OpenStream first(&service, request);
    v1::GenerateRequest second = UnaryRequest();
    second.set_request_id("mine");
    EXPECT_EQ(CallGenerate(&service, second).error_code(), grpc::StatusCode::ALREADY_EXISTS);
    // The other one goes on and its end frees the id at once.
    service.Deliver(StartedDelta(first.submitted, "a"));
    service.Deliver(FinishedDelta(first.submitted.key, 0, true));
    EXPECT_TRUE(first.Finish().ok());
    EXPECT_EQ(first.rest[0].started().request_id(), "mine");
  }
  OpenStream again(&service, request);
  service.Deliver(StartedDelta(again.submitted, "a"));
  service.Deliver(FinishedDelta(again.submitted.key, 0, true));
  EXPECT_TRUE(again.Finish().ok());
}

TEST(GenerateTest, B110EveryRefusalIsOneReplyAndTheNextCallWorks) {
  ServiceUnderTest service;
  for (int i = 0; i < 1000; ++i) {
    v1::GenerateRequest bad = UnaryRequest(i % 2 == 0 ? "" : std::string(100, 'x'));
    bad.set_request_id("same");
    EXPECT_EQ(CallGenerate(&service, bad).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_TRUE(Eventually([&] { return service.calls().num_open() == 0; }));
  OpenStream stream(&service);
  service.Deliver(StartedDelta(stream.submitted, "a"));
  service.Deliver(FinishedDelta(stream.submitted.key, 0, true));
  EXPECT_TRUE(stream.Finish().ok());
}

// ---- The small calls

TEST(InferenceServiceTest, TokenizeAndBack) {
  ServiceUnderTest service;
  v1::TokenizeRequest request;
  request.set_text("ab");
  grpc::ClientContext tokenize_context;
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(service.stub().Tokenize(&tokenize_context, request, &tokens).ok());
  EXPECT_THAT(tokens.token_ids(), ::testing::ElementsAre('a', 'b'));
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = tokens.token_ids();
  back.add_token_ids(kFakeEos);
  grpc::ClientContext context;
  v1::DetokenizeResponse text;
  ASSERT_TRUE(service.stub().Detokenize(&context, back, &text).ok());
  EXPECT_EQ(text.text(), "ab");
  back.add_token_ids(kFakeTokenizerIds);
  grpc::ClientContext bad_context;
  const grpc::Status status = service.stub().Detokenize(&bad_context, back, &text);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), ::testing::StartsWith("token_ids[3]: "));
}

TEST(InferenceServiceTest, DescribesTheModel) {
  ServiceUnderTest service;
  grpc::ClientContext context;
  v1::GetModelResponse model;
  ASSERT_TRUE(service.stub().GetModel(&context, {}, &model).ok());
  EXPECT_THAT(model.served_names(), ::testing::ElementsAre("fake", "alias"));
  EXPECT_EQ(model.vocab_size(), static_cast<uint32_t>(kFakeModelIds));
  EXPECT_EQ(model.max_context_tokens(), static_cast<uint32_t>(kFakeContext));
  EXPECT_TRUE(model.has_tokenizer());
  EXPECT_THAT(model.eos_token_ids(), ::testing::ElementsAre(kFakeEos));
  EXPECT_EQ(model.bos_token_id(), static_cast<uint32_t>(kFakeBos));
  EXPECT_EQ(model.default_sampling().temperature(), 1.0f);
  EXPECT_FALSE(model.default_sampling().has_seed());
  v1::GetModelRequest other;
  other.set_model("other");
  grpc::ClientContext other_context;
  EXPECT_EQ(service.stub().GetModel(&other_context, other, &model).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

// ---- Everything at once: no reply is lost or doubled, and nothing is left behind.

TEST(InferenceServiceTest, CallsThatEndInEveryWayAtOnce) {
  ServiceUnderTest service({.max_waiting_tasks = 4096});
  std::atomic<bool> stop{false};
  std::thread engine([&] {
    std::mt19937 random(1);
    std::vector<engine::Request> live;
    while (!stop.load() || service.engine().num_waiting() > 0 || !live.empty()) {
      while (service.engine().num_waiting() > 0) {
        live.push_back(service.engine().TakeRequest());
        service.Deliver(StartedDelta(live.back(), "s"));
      }
      for (size_t i = 0; i < live.size();) {
        const bool ends = random() % 8 == 0;
        service.Deliver(ends ? FinishedDelta(live[i].key, 0, true)
                             : TextDelta(live[i].key, 0, "t"));
        if (ends) {
          live[i] = std::move(live.back());
          live.pop_back();
        } else {
          ++i;
        }
      }
    }
  });
  std::vector<std::thread> clients;
  std::atomic<int> num_ok{0}, num_cancelled{0};
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(c);
      for (int i = 0; i < 100; ++i) {
        grpc::ClientContext context;
        Reader reader = service.stub().StreamGenerate(&context, StreamRequest());
        const int num_reads = random() % 2 == 0 ? 1 << 30 : static_cast<int>(random() % 4);
        v1::StreamGenerateResponse message;
        int n = 0;
        while (n < num_reads && reader->Read(&message)) ++n;
        if (n == num_reads) context.TryCancel();
        const grpc::Status status = reader->Finish();
        (status.ok() ? num_ok : num_cancelled).fetch_add(1);
        EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED)
            << status.error_code() << " " << status.error_message();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  stop.store(true);
  engine.join();
  EXPECT_EQ(num_ok.load() + num_cancelled.load(), 800);
  EXPECT_TRUE(Eventually([&] { return service.calls().num_open() == 0; }));
  uint64_t num_finished = 0;
  for (const auto& by_code : service.metrics().of(Api::kGrpc).requests_finished) {
    for (const auto& count : by_code) num_finished += count.load();
  }
  EXPECT_EQ(num_finished, 800u);
  EXPECT_EQ(service.metrics().of(Api::kGrpc).requests_received.load(), 800u);
}

}  // namespace
}  // namespace pagoda::daemon
