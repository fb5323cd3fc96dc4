// vllm.grpc.engine.VllmEngine of a real daemon: the same tokens as pagoda.v1, in the shapes that
// gateways read, and the prefix cache as its subscribers know it.

#include <algorithm>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/health_watch.h"
#include "tests/e2e/test_daemon.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace pagoda::e2e::engine_protocol_test {
namespace {

namespace engine_pb = ::vllm::grpc::engine;
namespace smg_pb = ::smg::grpc::common;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using EngineStub = engine_pb::VllmEngine::Stub;

std::unique_ptr<EngineStub> EngineStubOf(const TestDaemon& daemon,
                                         const grpc::ChannelArguments& arguments = {}) {
  return engine_pb::VllmEngine::NewStub(grpc::CreateCustomChannel(
      daemon.grpc_address(), grpc::InsecureChannelCredentials(), arguments));
}

void SetDeadline(grpc::ClientContext* context, absl::Duration timeout = absl::Seconds(120)) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

engine_pb::GenerateRequest Tokens(const std::vector<uint32_t>& ids, uint32_t max_tokens) {
  engine_pb::GenerateRequest request;
  request.mutable_tokenized()->mutable_input_ids()->Add(ids.begin(), ids.end());
  request.mutable_sampling_params()->set_temperature(0);
  request.mutable_sampling_params()->set_max_tokens(max_tokens);
  request.mutable_sampling_params()->set_ignore_eos(true);
  return request;
}

// Some text in the served model's own words.
std::vector<uint32_t> SomeIds(size_t size, uint32_t first = 300) {
  std::vector<uint32_t> ids;
  for (size_t i = 0; i < size; ++i) ids.push_back(first + static_cast<uint32_t>(i * i * 7 % 1000));
  return ids;
}

// One finished call; its chunks joined, or its completes.
struct EngineResult {
  struct Sequence {
    std::vector<uint32_t> ids;
    std::vector<float> logprobs;
    int num_top = 0;
    int num_chunks = 0;
    int num_completes = 0;
    uint32_t num_told = 0;  // sum of the chunks' completion_tokens
    engine_pb::InputLogProbs prompt_logprobs;
    engine_pb::GenerateComplete complete;
  };

  const Sequence& first() const { return sequences.at(0); }

  grpc::Status status;
  std::map<uint32_t, Sequence> sequences;
};

EngineResult Call(EngineStub& stub, engine_pb::GenerateRequest request, bool stream) {
  request.set_stream(stream);
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto reader = stub.Generate(&context, request);
  EngineResult result;
  engine_pb::GenerateResponse message;
  while (reader->Read(&message)) {
    const bool is_chunk = message.has_chunk();
    const uint32_t index = is_chunk ? message.chunk().index() : message.complete().index();
    EngineResult::Sequence& sequence = result.sequences[index];
    EXPECT_EQ(sequence.num_completes, 0) << "something after complete";
    const auto& ids = is_chunk ? message.chunk().token_ids() : message.complete().output_ids();
    const auto& logprobs =
        is_chunk ? message.chunk().output_logprobs() : message.complete().output_logprobs();
    const auto& prompt =
        is_chunk ? message.chunk().input_logprobs() : message.complete().input_logprobs();
    sequence.ids.insert(sequence.ids.end(), ids.begin(), ids.end());
    for (const float value : logprobs.token_logprobs()) sequence.logprobs.push_back(value);
    sequence.num_top += logprobs.top_logprobs_size();
    sequence.prompt_logprobs.MergeFrom(prompt);
    ++(is_chunk ? sequence.num_chunks : sequence.num_completes);
    if (is_chunk) sequence.num_told += message.chunk().completion_tokens();
    if (!is_chunk) sequence.complete = message.complete();
  }
  result.status = reader->Finish();
  return result;
}

class EngineProtocol : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto daemon = TestDaemon::Start({});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = daemon->release();
  }
  static void TearDownTestSuite() { delete daemon_; }

  EngineProtocol() : stub_(EngineStubOf(*daemon_)) {}
  ~EngineProtocol() override {
    EXPECT_TRUE(TestDaemon::Eventually(absl::Seconds(10), [] {
      return daemon_->Metric("pagoda_requests_running").value_or(-1) == 0 &&
             daemon_->Metric("pagoda_kv_blocks{pool=\"0\",state=\"used\"}").value_or(-1) == 0;
    }));
  }

  static TestDaemon* daemon_;
  std::unique_ptr<EngineStub> stub_;
};
TestDaemon* EngineProtocol::daemon_ = nullptr;

TEST_F(EngineProtocol, TheSameTokensAsOurOwnApi) {
  const std::vector<uint32_t> prompt = SomeIds(40);
  v1::GenerateRequest ours = IdsRequest(prompt, 24);
  ours.mutable_stopping()->set_ignore_eos(true);
  ours.mutable_sampling()->set_temperature(0);
  const CallResult expected = Generate(daemon_->stub(), ours);
  ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();
  for (const bool stream : {false, true}) {
    const EngineResult result = Call(*stub_, Tokens(prompt, 24), stream);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    const EngineResult::Sequence& sequence = result.first();
    EXPECT_THAT(sequence.ids, ElementsAreArray(expected.first().token_ids));
    EXPECT_EQ(sequence.num_completes, 1);
    EXPECT_EQ(sequence.num_chunks > 1, stream);
    EXPECT_EQ(sequence.num_told, stream ? 24u : 0u);
    EXPECT_EQ(sequence.complete.output_ids_size(), stream ? 0 : 24);
    EXPECT_EQ(sequence.complete.finish_reason(), "length");
    EXPECT_EQ(sequence.complete.prompt_tokens(), 40u);
    EXPECT_EQ(sequence.complete.completion_tokens(), 24u);
    EXPECT_GT(sequence.complete.cached_tokens(), 0u);
  }
}

TEST_F(EngineProtocol, SeveralSequencesWithLogprobs) {
  engine_pb::GenerateRequest request = Tokens(SomeIds(10), 6);
  engine_pb::SamplingParams* params = request.mutable_sampling_params();
  params->set_temperature(1);
  params->set_seed(5);
  params->set_n(3);
  params->set_logprobs(2);
  params->set_prompt_logprobs(1);
  const EngineResult unary = Call(*stub_, request, false), stream = Call(*stub_, request, true);
  ASSERT_TRUE(unary.status.ok()) << unary.status.error_message();
  ASSERT_EQ(unary.sequences.size(), 3u);
  for (const auto& [index, sequence] : unary.sequences) {
    const EngineResult::Sequence& streamed = stream.sequences.at(index);
    EXPECT_EQ(streamed.ids, sequence.ids);
    EXPECT_EQ(streamed.logprobs, sequence.logprobs);
    EXPECT_EQ(sequence.logprobs.size(), 6u);
    EXPECT_EQ(sequence.num_top, 6);
    for (const auto* s : {&sequence, &streamed}) {
      ASSERT_EQ(s->prompt_logprobs.token_logprobs_size(), 10);
      EXPECT_FALSE(s->prompt_logprobs.token_logprobs(0).has_value());
      EXPECT_LT(s->prompt_logprobs.token_logprobs(1).value(), 0);
      EXPECT_THAT(s->prompt_logprobs.token_ids(), ElementsAreArray(SomeIds(10)));
    }
  }
  EXPECT_NE(unary.sequences.at(0).ids, unary.sequences.at(1).ids);
}

TEST_F(EngineProtocol, StopsAndConstraints) {
  engine_pb::GenerateRequest request = Tokens(SomeIds(10), 40);
  const EngineResult free = Call(*stub_, request, false);
  ASSERT_TRUE(free.status.ok());
  const uint32_t third = free.first().ids.at(2);
  request.mutable_sampling_params()->add_stop_token_ids(third);
  const EngineResult by_id = Call(*stub_, request, true);
  EXPECT_EQ(by_id.first().complete.finish_reason(), "stop");
  EXPECT_EQ(by_id.first().complete.matched_token_id(), third);
  EXPECT_LE(by_id.first().ids.size(), 3u);

  engine_pb::GenerateRequest text;
  text.set_text("Once upon a time");
  text.mutable_sampling_params()->set_temperature(0);
  text.mutable_sampling_params()->set_max_tokens(200);
  text.mutable_sampling_params()->add_stop("e");
  const EngineResult by_text = Call(*stub_, text, true);
  ASSERT_TRUE(by_text.status.ok()) << by_text.status.error_message();
  EXPECT_EQ(by_text.first().complete.finish_reason(), "stop");
  EXPECT_EQ(by_text.first().complete.matched_stop_str(), "e");

  text.mutable_sampling_params()->clear_stop();
  text.mutable_sampling_params()->mutable_choice()->add_choices("xyzzy");
  const EngineResult chosen = Call(*stub_, text, false);
  ASSERT_TRUE(chosen.status.ok()) << chosen.status.error_message();
  v1::DetokenizeRequest ids;
  for (const uint32_t id : chosen.first().ids) ids.add_token_ids(id);
  v1::DetokenizeResponse said;
  grpc::ClientContext context;
  ASSERT_TRUE(daemon_->stub().Detokenize(&context, ids, &said).ok());
  EXPECT_EQ(said.text(), "xyzzy");
}

TEST_F(EngineProtocol, AbortAndCancellationFreeTheRequest) {
  engine_pb::GenerateRequest request = Tokens(SomeIds(10), 1500);
  request.set_request_id("long");
  request.set_stream(true);
  for (const bool by_abort : {true, false}) {
    grpc::ClientContext context, abort_context;
    SetDeadline(&context);
    const auto reader = stub_->Generate(&context, request);
    engine_pb::GenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    engine_pb::AbortRequest abort;
    abort.add_request_ids("nobody's");
    abort.add_request_ids("long");
    engine_pb::AbortResponse none;
    if (by_abort) {
      ASSERT_TRUE(stub_->Abort(&abort_context, abort, &none).ok());
    } else {
      context.TryCancel();
    }
    while (reader->Read(&message)) {
    }
    const grpc::Status status = reader->Finish();
    if (by_abort) {
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(message.complete().finish_reason(), "abort");
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
    }
  }
}

TEST_F(EngineProtocol, DescribesItself) {
  HealthWatch of_engine(daemon_->grpc_address(), "vllm.grpc.engine.VllmEngine");
  EXPECT_TRUE(of_engine.ReadUntil(true));
  grpc::ClientContext contexts[4];
  engine_pb::HealthCheckResponse health;
  ASSERT_TRUE(stub_->HealthCheck(&contexts[0], {}, &health).ok());
  EXPECT_TRUE(health.healthy());
  engine_pb::GetModelInfoResponse model;
  ASSERT_TRUE(stub_->GetModelInfo(&contexts[1], {}, &model).ok());
  EXPECT_EQ(model.model_type(), "llama");
  EXPECT_EQ(model.max_context_length(), 2048u);
  EXPECT_EQ(model.vocab_size(), 4096u);
  EXPECT_TRUE(absl::EndsWith(model.tokenizer_path(), "fable-7m"));
  engine_pb::GetServerInfoResponse server;
  ASSERT_TRUE(stub_->GetServerInfo(&contexts[2], {}, &server).ok());
  EXPECT_EQ(server.active_requests(), 0u);
  engine_pb::GetLoadsResponse loads;
  ASSERT_TRUE(stub_->GetLoads(&contexts[3], {}, &loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_GT(loads.loads(0).max_total_num_tokens(), 0);

  grpc::ClientContext context;
  const auto reader = stub_->GetTokenizer(&context, {});
  smg_pb::GetTokenizerChunk chunk;
  std::string zip;
  while (reader->Read(&chunk)) zip += chunk.data();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(zip, HasSubstr("tokenizer_config.json"));
  EXPECT_EQ(chunk.sha256().size(), 64u);
}

// ---- KV events

// A subscriber that applies what it is told.
class CacheView {
 public:
  CacheView(EngineStub& stub, uint64_t start) : last_(start) {
    smg_pb::SubscribeKvEventsRequest request;
    request.set_start_sequence_number(start);
    reader_ = stub.SubscribeKvEvents(&context_, request);
  }
  ~CacheView() {
    context_.TryCancel();
    if (!has_finished_) reader_->Finish();
  }

  bool ReadBatch() {
    smg_pb::KvEventBatch batch;
    if (!reader_->Read(&batch)) return false;
    EXPECT_EQ(batch.sequence_number(), ++last_);
    for (const smg_pb::KvCacheEvent& event : batch.events()) {
      if (event.has_cleared()) blocks_.clear();
      for (const int64_t hash : event.removed().block_hashes()) EXPECT_EQ(blocks_.erase(hash), 1u);
      int64_t parent = event.stored().parent_block_hash();  // 0: none
      for (const smg_pb::KvBlock& block : event.stored().blocks()) {
        EXPECT_EQ(block.token_ids_size(), block.block_size());
        blocks_[block.block_hash()] = {parent,
                                       {block.token_ids().begin(), block.token_ids().end()}};
        parent = block.block_hash();
      }
    }
    return true;
  }
  grpc::Status Finish() {
    has_finished_ = true;
    return reader_->Finish();
  }

  // Tokens of the cached prefix of `ids`.
  size_t CachedTokens(const std::vector<uint32_t>& ids) const {
    int64_t parent = 0;
    size_t num_tokens = 0;
    for (bool found = true; std::exchange(found, false);) {
      for (const auto& [hash, block] : blocks_) {
        const size_t end = num_tokens + block.tokens.size();
        if (block.parent != parent || end > ids.size() ||
            !std::equal(block.tokens.begin(), block.tokens.end(), ids.begin() + num_tokens)) {
          continue;
        }
        parent = hash;
        num_tokens = end;
        found = true;
        break;
      }
    }
    return num_tokens;
  }
  std::set<int64_t> Hashes() const {
    std::set<int64_t> hashes;
    for (const auto& [hash, block] : blocks_) hashes.insert(hash);
    return hashes;
  }

 private:
  struct Block {
    int64_t parent = 0;
    std::vector<uint32_t> tokens;
  };

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<smg_pb::KvEventBatch>> reader_;
  bool has_finished_ = false;
  uint64_t last_;
  std::map<int64_t, Block> blocks_;
};

TEST(EngineProtocolKvEvents, SubscribersKnowWhatIsCached) {
  auto started = TestDaemon::Start({});
  ASSERT_TRUE(started.ok()) << started.status();
  const std::unique_ptr<TestDaemon> daemon = *std::move(started);
  const auto stub = EngineStubOf(*daemon);
  const std::vector<uint32_t> early = SomeIds(100, 300), later = SomeIds(100, 2000);
  ASSERT_TRUE(Call(*stub, Tokens(early, 4), false).status.ok());
  CacheView view(*stub, 0);
  while (view.CachedTokens(early) < 96) ASSERT_TRUE(view.ReadBatch());
  EXPECT_EQ(view.CachedTokens(later), 0u);
  ASSERT_TRUE(Call(*stub, Tokens(later, 4), true).status.ok());
  while (view.CachedTokens(later) < 96) ASSERT_TRUE(view.ReadBatch());
  // What the view says is what a request finds.
  const EngineResult again = Call(*stub, Tokens(later, 4), false);
  EXPECT_EQ(again.first().complete.cached_tokens(), view.CachedTokens(later));
  // One that comes back knows the same, from its own number on.
  CacheView second(*stub, 1000);
  while (second.CachedTokens(later) < 96 || second.CachedTokens(early) < 96)
    ASSERT_TRUE(second.ReadBatch());
  EXPECT_EQ(second.Hashes(), view.Hashes());
  // Open subscriptions do not hold a daemon up.
  daemon->Signal(SIGTERM);
  while (view.ReadBatch()) {
  }
  EXPECT_EQ(view.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  const auto exit = daemon->WaitForExit(absl::Seconds(10));
  ASSERT_TRUE(exit.ok());
  EXPECT_EQ(*exit, 0);
}

// ---- Transport

// A gateway's pings during a prefill that takes 45 s without a byte.
TEST(EngineProtocolTransportLong, PingsOverASilentPrefill) {
  auto daemon = TestDaemon::Start(
      {.flags = {"--device=sim", "--sim-base-us=1000", "--sim-per-token-us=45000"},
       .over_tcp = true});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto stub = EngineStubOf(**daemon, arguments);
  const absl::Time start = absl::Now();
  const EngineResult result = Call(*stub, Tokens(SomeIds(1000), 2), true);
  EXPECT_GT(absl::Now() - start, absl::Seconds(40));
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.first().ids.size(), 2u);
}

}  // namespace
}  // namespace pagoda::e2e::engine_protocol_test
