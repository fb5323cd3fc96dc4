#include "daemon/server/serve.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <pthread.h>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/server/access.h"
#include "daemon/server/constraint_compiler.h"
#include "daemon/server/exit_deadline.h"
#include "daemon/server/generation_call.h"
#include "daemon/server/grpc_idle_sleep.h"
#include "daemon/server/grpc_server.h"
#include "daemon/server/http_server.h"
#include "daemon/server/inference_service.h"
#include "daemon/server/library_logs.h"
#include "daemon/server/load_progress.h"
#include "daemon/server/memory_plan.h"
#include "daemon/server/metrics_collector.h"
#include "daemon/server/metrics_endpoint.h"
#include "daemon/server/model_loader.h"
#include "daemon/server/operations.h"
#include "daemon/server/output_shards.h"
#include "daemon/server/pulse_pipe.h"
#include "daemon/server/rpc_error.h"
#include "daemon/server/service_manager.h"
#include "daemon/server/signal_thread.h"
#include "daemon/server/start_failure.h"
#include "daemon/server/text_pool.h"
#include "daemon/server/vllm/engine_service.h"
#include "daemon/server/vllm/kv_event_hub.h"
#include "engine/engine.h"
#include "engine/model/kv_pool.h"
#include "kernels/base/log.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "parallel/worker_pool.h"

namespace pagoda::daemon {
namespace {

using internal::v1::ServerConfig;

// After the drain limit: for streams to take their last status, and for gRPC to close its
// connections.
constexpr absl::Duration kFlushTime = absl::Milliseconds(400);
constexpr absl::Duration kShutdownTime = absl::Milliseconds(200);
// After a stop that should take well under a second; something hangs.
constexpr absl::Duration kHardExitTime = absl::Seconds(10);
// How soon a second signal or a lost worker ends a drain.
constexpr absl::Duration kDrainPoll = absl::Milliseconds(20);
// Once nothing runs, a drain ends when nobody has come for so long, or after the second: a balancer
// that asks every two seconds has seen it by then.
constexpr absl::Duration kQuietTime = absl::Milliseconds(100);
constexpr absl::Duration kLastRefusalsTime = absl::Seconds(3);
// What a service manager grants from one sign of life while loading to the next: more than the
// longest silence of a worker that is well.
constexpr absl::Duration kLoadPatience = absl::Minutes(11);
// What it grants beyond the drain limit.
constexpr absl::Duration kStopPatience = absl::Seconds(30);
// Request messages that gRPC may hold unread over all connections.
constexpr size_t kMaxInboundBytes = size_t{1} << 30;
// Bodies of the largest size that HTTP connections may be reading at once.
constexpr size_t kMaxLargestBodies = 16;

// One run of the daemon, from start to stop. Main thread, but for what the signal and engine
// threads leave in the members that say so.
class Daemon {
 public:
  Daemon(const ServerConfig& config, ServeSources sources, ServiceManager* manager)
      : config_(config),
        sources_(std::move(sources)),
        manager_(manager),
        collector_(std::make_shared<MetricsCollector>(
            &engine_metrics_, &server_metrics_, [this] { return state_.load(); })),
        http_body_budget_(kMaxLargestBodies * config.front_end().max_message_bytes()) {}

  int Run();

 private:
  // The steps of a start, in order.
  absl::Status ReadModel();
  absl::Status Listen();
  absl::Status ListenHttp();
  absl::Status StartWorker();
  absl::Status Load();
  absl::Status StartEngine();

  int ServeUntilStopped();
  void Drain();
  void Stop();
  void SetState(ServingState state);
  void AskToStop();
  void RunEngine();
  bool EngineHasEnded() const;
  bool EngineHasFailed() const;

  ServerConfig config_;
  const ServeSources sources_;
  ServiceManager* const manager_;
  const Clock& clock_ = Clock::Monotonic();

  // Synchronise themselves.
  std::atomic<ServingState> state_{ServingState::kLoading};
  std::atomic<int> num_signals_{0};
  mutable Mutex mutex_;
  std::string socket_path_ ABSL_GUARDED_BY(mutex_);   // of the Unix socket, once it is there
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;  // a signal came or the engine ended
  absl::optional<absl::Status> engine_end_ ABSL_GUARDED_BY(mutex_);

  // Made in this order, destroyed in reverse.
  engine::EngineMetrics engine_metrics_;
  ServerMetrics server_metrics_;
  AccessControl access_{&server_metrics_};
  std::unique_ptr<TlsContext> tls_;  // null: HTTP is not encrypted
  const std::shared_ptr<MetricsCollector> collector_;
  ServedModel model_;
  RequestLog request_log_{&clock_};
  LiveRequestIds request_ids_;
  CallCounter calls_;
  CallServices services_;
  std::unique_ptr<OutputShards> shards_;
  std::unique_ptr<TextPool> text_pool_;
  std::unique_ptr<ConstraintCompiler> compiler_;
  std::unique_ptr<KvEventHub> kv_events_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<EngineService> engine_service_;
  std::unique_ptr<MetricsEndpoint> metrics_endpoint_;
  std::unique_ptr<GrpcServer> grpc_server_;
  ByteBudget http_body_budget_;
  std::unique_ptr<HttpRoutes> http_routes_;
  std::unique_ptr<HttpServer> http_server_;
  std::unique_ptr<parallel::WorkerPool> pool_;
  MemoryPlan plan_;
  std::unique_ptr<PulsePipe> pulse_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<EngineAsPort> engine_port_;
  std::thread engine_thread_;
  Operations operations_{{.sources = &sources_,
                          .access = &access_,
                          .manager = manager_,
                          .tls = &tls_,
                          .ask_to_stop = [this] { AskToStop(); }}};
};

int Daemon::Run() {
  struct Step {
    absl::Status (Daemon::*run)();
    ExitCode on_failure;
  };
  static constexpr Step kSteps[] = {{&Daemon::ReadModel, kExitBadModel},
                                    {&Daemon::Listen, kExitAddress},
                                    {&Daemon::StartWorker, kExitNoDevice},
                                    {&Daemon::Load, kExitBadModel},
                                    {&Daemon::StartEngine, kExitBadModel}};
  const SignalThread signals([this] { AskToStop(); },
                             [this] { operations_.Reload(state_.load() == ServingState::kReady); });
  int exit_code = kExitOk;
  for (const Step& step : kSteps) {
    const absl::Status status = (this->*step.run)();
    if (status.ok()) continue;
    LogError("%s", status.message());
    exit_code = ExitCodeOfStart(status, step.run == &Daemon::Load, step.on_failure);
    break;
  }
  if (exit_code == kExitOk) exit_code = ServeUntilStopped();
  Stop();
  return exit_code;
}

absl::Status Daemon::ReadModel() {
  PAGODA_ASSIGN_OR_RETURN(model_, LoadServedModel(&config_));
  collector_->SetInfo(MetricsInfoOf(model_, config_));
  return absl::OkStatus();
}

absl::Status Daemon::Listen() {
  const internal::v1::FrontEndConfig& front_end = config_.front_end();
  if (!front_end.api_keys().empty()) {
    PAGODA_ASSIGN_OR_RETURN(ApiKeys keys, ApiKeys::Parse(front_end.api_keys()));
    access_.SetKeys(std::move(keys));
  }
  const TlsFiles tls = TlsFiles::Of(front_end);
  if (!tls.empty()) {
    PAGODA_ASSIGN_OR_RETURN(tls_, TlsContext::Load(tls));
  }
  if (!GrpcIdleSleepIsOff())
    LogWarning("gRPC's idle sleep is on: the first call after a quiet second may wait 100 ms");
  shards_ = std::make_unique<OutputShards>(OutputShards::Options{
      .num_shards = front_end.output_threads(),
      .stall_timeout = absl::Milliseconds(front_end.stream_stall_timeout_ms()),
      .clock = &clock_});
  text_pool_ = std::make_unique<TextPool>(
      TextPool::Options{.num_threads = front_end.text_threads(),
                        .max_waiting_tasks = config_.engine().max_waiting_requests()});
  compiler_ = std::make_unique<ConstraintCompiler>(ConstraintCompiler::Options());
  services_ = {.model = &model_,
               .engine = nullptr,  // until StartEngine
               .shards = shards_.get(),
               .request_ids = &request_ids_,
               .calls = &calls_,
               .metrics = &server_metrics_,
               .access = &access_,
               .log = &request_log_,
               .compiler = compiler_.get(),
               .clock = &clock_,
               .max_stream_buffer_bytes = front_end.max_stream_buffer_bytes()};
  service_ = std::make_unique<InferenceService>(&services_, text_pool_.get(), &state_);
  kv_events_ = std::make_unique<KvEventHub>(KvEventHub::Options());
  engine_service_ =
      std::make_unique<EngineService>(EngineService::Options{.services = &services_,
                                                             .text_pool = text_pool_.get(),
                                                             .state = &state_,
                                                             .engine_metrics = &engine_metrics_,
                                                             .kv_events = kv_events_.get(),
                                                             .model_dir = config_.model().path()});

  if (!IsNoAddress(front_end.metrics_address())) {
    PAGODA_ASSIGN_OR_RETURN(ListenAddress address,
                            ParseListenAddress("--metrics-address", front_end.metrics_address()));
    PAGODA_ASSIGN_OR_RETURN(metrics_endpoint_,
                            MetricsEndpoint::Start(std::move(address), collector_));
    LogInfo("metrics on http://%s/metrics", metrics_endpoint_->address().ToString());
  }
  PAGODA_ASSIGN_OR_RETURN(ListenAddress address,
                          ParseListenAddress("--grpc-address", front_end.grpc_address()));
  WarnOfReach(address, tls, access_);
  PAGODA_ASSIGN_OR_RETURN(
      grpc_server_,
      GrpcServer::Start({.address = std::move(address),
                         .tls = tls,
                         .max_message_bytes = static_cast<int>(front_end.max_message_bytes()),
                         .max_inbound_bytes = kMaxInboundBytes},
                        {service_.get(), engine_service_.get()}));
  PAGODA_RETURN_IF_ERROR(ListenHttp());
  PAGODA_RETURN_IF_ERROR(operations_.Listen(front_end.admin_socket()));
  LogInfo("gRPC on %s, loading", grpc_server_->address().ToString());
  MutexLock lock(&mutex_);
  socket_path_ = grpc_server_->address().path;
  return absl::OkStatus();
}

absl::Status Daemon::ListenHttp() {
  const internal::v1::FrontEndConfig& front_end = config_.front_end();
  if (IsNoAddress(front_end.http_address())) return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(ListenAddress address,
                          ParseListenAddress("--http-address", front_end.http_address()));
  HttpRoutes::Options routes = {.services = &services_,
                                .text_pool = text_pool_.get(),
                                .state = &state_,
                                .metrics = collector_,
                                .created = absl::ToUnixSeconds(absl::Now())};
  if (front_end.http_reasoning_parser() == "open") routes.reasoning = openai::ReasoningMode::kOpen;
  if (front_end.http_reasoning_parser() == "none") routes.reasoning = openai::ReasoningMode::kNone;
  WarnOfReach(address, TlsFiles::Of(front_end), access_);
  http_routes_ = std::make_unique<HttpRoutes>(std::move(routes));
  auto server = HttpServer::Start(
      {.address = std::move(address),
       .num_threads = front_end.http_threads(),
       .max_connections = front_end.http_max_connections(),
       .connection = {.routes = http_routes_.get(),
                      .clock = &clock_,
                      .tls = tls_.get(),
                      .allowed_origins = {front_end.http_allowed_origins().begin(),
                                          front_end.http_allowed_origins().end()},
                      .max_body_bytes = front_end.max_message_bytes(),
                      .body_budget = &http_body_budget_,
                      .num_connections = &server_metrics_.http_connections,
                      .stall_timeout = absl::Milliseconds(front_end.stream_stall_timeout_ms()),
                      .heartbeat_interval = absl::Milliseconds(front_end.http_heartbeat_ms())}});
  if (!server.ok() && sources_.http_is_optional) {
    LogWarning("no HTTP API: %s", server.status().message());
    return absl::OkStatus();
  }
  PAGODA_RETURN_IF_ERROR(server.status());
  http_server_ = *std::move(server);
  LogInfo("OpenAI-compatible HTTP on %s", http_server_->address().ToString());
  return absl::OkStatus();
}

absl::Status Daemon::StartWorker() {
  PAGODA_ASSIGN_OR_RETURN(
      pool_,
      parallel::WorkerPool::Start({.config = config_,
                                   .worker_command = {"/proc/self/exe", "worker"},
                                   .num_ranks = NumTensorRanks(config_)}));
  const int32_t num_ranks = NumTensorRanks(config_);
  LogInfo("worker %d on %s (%s)%s",
          pool_->hello().pid(),
          pool_->hello().device(),
          pool_->hello().device_name(),
          num_ranks > 1 ? absl::StrCat(", rank 0 of ", num_ranks) : "");
  return absl::OkStatus();
}

absl::Status Daemon::Load() {
  PAGODA_ASSIGN_OR_RETURN(const DType dtype, ResolveDType(config_, model_.config));
  PAGODA_ASSIGN_OR_RETURN(plan_,
                          PlanMemory({.config = &config_,
                                      .model = &model_.config,
                                      .dtype = dtype,
                                      .max_model_len = model_.max_context_tokens,
                                      .hello = &pool_->hello()}));
  for (const std::string& line : plan_.ToLines()) LogInfo("%s", line);
  internal::v1::LoadModel load;
  load.set_num_kv_blocks(static_cast<uint32_t>(plan_.kv.num_blocks));
  manager_->NoteLoading(absl::StrCat("loading ", model_.name()), kLoadPatience);
  LoadProgressPrinter printer(isatty(STDERR_FILENO) != 0, &clock_);
  PAGODA_ASSIGN_OR_RETURN(const internal::v1::ModelReady ready,
                          pool_->Load(load, [this, &printer](const auto& progress) {
                            const absl::optional<std::string> line = printer.Show(progress);
                            if (line.has_value()) manager_->NoteLoading(*line, kLoadPatience);
                          }));
  model_.num_kv_blocks = static_cast<int32_t>(ready.num_kv_blocks());
  if (ready.taken_bytes() != 0) LogInfo("%s", MeasuredMemoryLine(plan_, ready));
  MetricsInfo info = MetricsInfoOf(model_, config_);
  info.load_read_seconds = ready.read_seconds();
  info.load_warmup_seconds = ready.warmup_seconds();
  collector_->SetInfo(std::move(info));
  LogInfo("loaded %s of weights in %.2f s (%.1f GB/s), warmed up in %.2f s",
          FormatBytes(ready.weight_bytes()),
          ready.read_seconds(),
          static_cast<double>(ready.weight_bytes()) * 1e-9 / std::max(ready.read_seconds(), 1e-9),
          ready.warmup_seconds());
  return absl::OkStatus();
}

absl::Status Daemon::StartEngine() {
  pulse_ = std::make_unique<PulsePipe>(pool_.get());
  engine_ = std::make_unique<engine::Engine>(
      engine::EngineOptions{.config = config_.engine(),
                            .max_model_len = model_.max_context_tokens,
                            .vocab_size = model_.num_known_ids,
                            .num_kv_blocks = model_.num_kv_blocks,
                            .kv_window = engine::KvPool::Window(model_.config),
                            .pipe = pulse_.get(),
                            .sink = shards_.get(),
                            .block_sink = kv_events_.get(),
                            .metrics = &engine_metrics_,
                            .tokenizer = model_.tokenizer.get(),
                            .clock = &clock_});
  engine_port_ = std::make_unique<EngineAsPort>(engine_.get());
  services_.engine = engine_port_.get();
  operations_.SetEngine(engine_.get());
  shards_->SetEngine(engine_port_.get());
  kv_events_->SetWatch([engine = engine_.get()](uint64_t watch) { engine->WatchBlocks(watch); });
  engine_thread_ = std::thread([this] { RunEngine(); });
  pthread_setname_np(engine_thread_.native_handle(), "engine");
  return absl::OkStatus();
}

void Daemon::RunEngine() {
  const absl::Status end = engine_->Run();
  // Here, not on the main thread: readiness is wrong from the moment that nobody computes.
  if (!end.ok()) SetState(ServingState::kFailed);
  {
    MutexLock lock(&mutex_);
    engine_end_ = end;
    is_stopping_ = true;
  }
  // Workers that this thread has started die with it.
  pool_->Stop();
}

void Daemon::SetState(ServingState state) {
  MutexLock lock(&mutex_);
  // A worker can be lost while the main thread takes the next step.
  if (state <= state_.load()) return;
  state_.store(state);
  grpc_server_->SetServing(state == ServingState::kReady);
}

void Daemon::AskToStop() {
  const int count = num_signals_.fetch_add(1) + 1;
  MutexLock lock(&mutex_);
  if (state_.load() == ServingState::kLoading) {
    // Nobody is served yet and loading cannot be interrupted; the worker dies with this process.
    LogInfo("stopped while loading");
    if (!socket_path_.empty()) unlink(socket_path_.c_str());
    const std::string& admin_socket = config_.front_end().admin_socket();
    if (!admin_socket.empty()) unlink(admin_socket.c_str());
    _exit(kExitOk);
  }
  LogInfo("%s",
          count == 1 ? "stopping: running streams may finish; once more to stop at once"
                     : "stopping at once");
  is_stopping_ = true;
}

bool Daemon::EngineHasEnded() const {
  MutexLock lock(&mutex_);
  return engine_end_.has_value();
}

bool Daemon::EngineHasFailed() const {
  MutexLock lock(&mutex_);
  return engine_end_.has_value() && !engine_end_->ok();
}

int Daemon::ServeUntilStopped() {
  SetState(ServingState::kReady);
  const std::string what =
      absl::StrCat("serving ", model_.name(), " on ", grpc_server_->address().ToString());
  LogInfo("%s", what);
  manager_->NoteReady(what);
  // Cancelling what no request is makes the engine go round.
  const Watchdog watchdog(
      manager_,
      [this] { return pulse_->num_rounds(); },
      [this] { engine_->Cancel(engine::RequestKey()); });
  { MutexLock lock(&mutex_, absl::Condition(&is_stopping_)); }
  if (!EngineHasEnded()) Drain();
  MutexLock lock(&mutex_);
  if (!engine_end_.has_value() || engine_end_->ok()) return kExitOk;
  LogError("given up: %s", engine_end_->message());
  return kExitWorkerLost;
}

void Daemon::Drain() {
  SetState(ServingState::kDraining);
  const absl::Duration drain_time = absl::Milliseconds(config_.front_end().drain_timeout_ms());
  manager_->NoteStopping("draining: running streams may finish", drain_time + kStopPatience);
  engine_->Drain();
  if (http_server_ != nullptr) http_server_->Drain();
  const absl::Time limit = absl::Now() + drain_time;
  const bool was_idle = calls_.num_open() == 0;
  while (num_signals_.load() < 2 && absl::Now() < limit) {
    if (calls_.WaitUntilNone(absl::Now() + kDrainPoll)) {
      if (was_idle) return;
      // Closing connections cuts off what arrives in that moment, and its client cannot know what
      // became of it: who has not heard of the drain is refused, which a balancer takes elsewhere.
      return WaitUntilStill(
          server_metrics_.requests_rejected[static_cast<size_t>(RejectReason::kDraining)],
          kQuietTime,
          std::min(limit, absl::Now() + kLastRefusalsTime),
          [this] { return num_signals_.load() >= 2; });
    }
    if (EngineHasFailed()) break;
  }
  LogWarning("ending %d calls that still run", calls_.num_open());
}

void Daemon::Stop() {
  const ExitDeadline hard_exit(kHardExitTime, kExitWorkerLost);
  operations_.Stop();
  if (engine_thread_.joinable()) {
    engine_->Stop(DrainingError());
    engine_thread_.join();
  }
  calls_.WaitUntilNone(absl::Now() + kFlushTime);
  if (kv_events_ != nullptr) kv_events_->EndAll(DrainingError());
  if (http_server_ != nullptr) http_server_->Shutdown(absl::Now() + kShutdownTime);
  if (grpc_server_ != nullptr) grpc_server_->Shutdown(absl::Now() + kShutdownTime);
  if (kv_events_ != nullptr) kv_events_->Stop();
  if (text_pool_ != nullptr) text_pool_->Stop();
  if (compiler_ != nullptr) compiler_->Stop();
  if (shards_ != nullptr) shards_->Stop();
  if (pool_ != nullptr) pool_->Stop();
}

// Each client has a descriptor, and shells give 1024.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int RunServe(const ServerConfig& config, ServeSources sources) {
  SignalThread::BlockSignals();
  RaiseDescriptorLimit();
  ServiceManager manager(ServiceManager::Options::TakeFromEnvironment());
  RouteLibraryLogs();
  return Daemon(config, std::move(sources), &manager).Run();
}

}  // namespace pagoda::daemon
