#include "tests/daemon/server/service_under_test.h"

#include <algorithm>
#include <utility>

namespace pagoda::daemon {

absl::Status FakeEngine::Submit(engine::Request request) {
  MutexLock lock(&mutex_);
  if (!refusal_.ok()) return refusal_;
  requests_.push_back(std::move(request));
  return absl::OkStatus();
}

void FakeEngine::Cancel(engine::RequestKey key) {
  MutexLock lock(&mutex_);
  cancelled_.push_back(key);
}

void FakeEngine::RefuseWith(absl::Status status) {
  MutexLock lock(&mutex_);
  refusal_ = std::move(status);
}

engine::Request FakeEngine::TakeRequest() {
  const auto has_one = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !requests_.empty(); };
  MutexLock lock(&mutex_, absl::Condition(&has_one));
  engine::Request request = std::move(requests_.front());
  requests_.pop_front();
  return request;
}

size_t FakeEngine::num_waiting() const {
  MutexLock lock(&mutex_);
  return requests_.size();
}

bool FakeEngine::WasCancelled(engine::RequestKey key) const {
  MutexLock lock(&mutex_);
  return std::find(cancelled_.begin(), cancelled_.end(), key) != cancelled_.end();
}

bool FakeEngine::WaitForCancel(engine::RequestKey key) {
  return Eventually([&] { return WasCancelled(key); });
}

ServiceUnderTest::ServiceUnderTest(Options options) : access_(&metrics_, options.key_guard) {
  shards_ = std::make_unique<OutputShards>(OutputShards::Options{.num_shards = options.num_shards,
                                                                 .stall_timeout = absl::Seconds(30),
                                                                 .clock = options.clock});
  shards_->SetEngine(&engine_);
  text_pool_ = std::make_unique<TextPool>(
      TextPool::Options{.num_threads = 1, .max_waiting_tasks = options.max_waiting_tasks});
  services_ = {.model = &model_,
               .engine = &engine_,
               .shards = shards_.get(),
               .request_ids = &request_ids_,
               .calls = &calls_,
               .metrics = &metrics_,
               .access = &access_,
               .compiler = &compiler_,
               .clock = options.clock,
               .max_stream_buffer_bytes = options.max_stream_buffer_bytes};
  service_ = std::make_unique<InferenceService>(&services_, text_pool_.get(), &state_);
  grpc::ServerBuilder builder;
  builder.RegisterService(service_.get());
  kv_events_ = std::make_unique<KvEventHub>(options.kv_events);
  kv_events_->SetWatch([this](uint64_t watch) { watch_.store(watch); });
  engine_service_ =
      std::make_unique<EngineService>(EngineService::Options{.services = &services_,
                                                             .text_pool = text_pool_.get(),
                                                             .state = &state_,
                                                             .engine_metrics = &engine_metrics_,
                                                             .kv_events = kv_events_.get(),
                                                             .model_dir = options.model_dir});
  builder.RegisterService(engine_service_.get());
  if (!options.address.empty()) {
    builder.AddListeningPort(options.address, grpc::InsecureServerCredentials());
  }
  server_ = builder.BuildAndStart();
  const auto channel = server_->InProcessChannel(grpc::ChannelArguments());
  stub_ = v1::InferenceService::NewStub(channel);
  engine_stub_ = engine_pb::VllmEngine::NewStub(channel);
}

ServiceUnderTest::~ServiceUnderTest() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  kv_events_->Stop();
  text_pool_->Stop();
  compiler_.Stop();
  shards_->Stop();
}

void ServiceUnderTest::Deliver(engine::OutputDelta delta) {
  std::vector<engine::OutputDelta> deltas;
  deltas.push_back(std::move(delta));
  shards_->Deliver(std::move(deltas));
}

engine::OutputDelta StartedDelta(const engine::Request& request, const std::string& text) {
  engine::OutputDelta delta = TextDelta(request.key, 0, text);
  delta.started = {.num_prompt_tokens = static_cast<int32_t>(request.prompt.size()),
                   .num_cached_tokens = 1,
                   .queue_ns = 1'500'000'000};
  return delta;
}

engine::OutputDelta TextDelta(engine::RequestKey key, int32_t index, const std::string& text) {
  engine::OutputDelta delta;
  delta.key = key;
  delta.index = index;
  delta.text = text;
  for (const char c : text) delta.tokens.push_back(static_cast<unsigned char>(c));
  return delta;
}

engine::OutputDelta FinishedDelta(engine::RequestKey key,
                                  int32_t index,
                                  bool last,
                                  engine::FinishReason reason,
                                  absl::Status status) {
  engine::OutputDelta delta = TextDelta(key, index, "");
  delta.finished.emplace();
  delta.finished->reason = reason;
  delta.finished->status = std::move(status);
  delta.finished->num_completion_tokens = 3;
  delta.finished->first_token_ns = 2'000'000'000;
  delta.finished->total_ns = 3'000'000'000;
  delta.last = last;
  return delta;
}

v1::GenerateRequest UnaryRequest(const std::string& text) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(text);
  return request;
}

grpc::Status CallGenerate(ServiceUnderTest* service, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  v1::GenerateResponse response;
  return service->stub().Generate(&context, request, &response);
}

}  // namespace pagoda::daemon
