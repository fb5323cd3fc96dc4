#include "daemon/server/serve.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <sys/resource.h>
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
#include "daemon/server/gpu/gpu_monitor.h"
#include "daemon/server/grpc_idle_sleep.h"
#include "daemon/server/grpc_server.h"
#include "daemon/server/http_server.h"
#include "daemon/server/inference_service.h"
#include "daemon/server/library_logs.h"
#include "daemon/server/load_progress.h"
#include "daemon/server/metrics_collector.h"
#include "daemon/server/metrics_endpoint.h"
#include "daemon/server/model_loader.h"
#include "daemon/server/operations.h"
#include "daemon/server/output_shards.h"
#include "daemon/server/readiness.h"
#include "daemon/server/replicas/replica_config.h"
#include "daemon/server/replicas/replica_set.h"
#include "daemon/server/rpc_error.h"
#include "daemon/server/service_manager.h"
#include "daemon/server/signal_thread.h"
#include "daemon/server/start_failure.h"
#include "daemon/server/text_pool.h"
#include "daemon/server/vllm/engine_service.h"
#include "daemon/server/vllm/kv_event_hub.h"
#include "engine/engine.h"
#include "kernels/base/log.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

using internal::v1::ServerConfig;

// After the drain limit: for streams to take their last status, and for gRPC to close its
// connections.
constexpr absl::Duration kFlushTime = absl::Milliseconds(400);
constexpr absl::Duration kShutdownTime = absl::Milliseconds(200);
// After a stop that should take well under a second; something hangs.
constexpr absl::Duration kHardExitTime = absl::Seconds(10);
// How often is asked whether the workers compute: readiness is right within two seconds of a fault,
// 1.5 of which a step is waited for.
constexpr absl::Duration kReadinessPeriod = absl::Milliseconds(200);
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
// Messages of the largest size that each API may hold over all connections while they arrive.
constexpr size_t kMaxLargestMessages = 16;
// gRPC counts all that its connections and calls take, however small messages may be, and ends
// calls of its choice beyond.
constexpr size_t kLeastGrpcBytes = size_t{1} << 30;

// One run of the daemon, from start to stop. Main thread, but for what the signal and engine
// threads leave in the members that say so.
class Daemon {
 public:
  Daemon(const ServerConfig& config, ServeSources sources, ServiceManager* manager)
      : config_(config),
        sources_(std::move(sources)),
        manager_(manager),
        replicas_(NumReplicas(config)),
        collector_(std::make_shared<MetricsCollector>(
            replicas_.metrics(), &server_metrics_, [this] { return state_.load(); })),
        inbound_bytes_(kMaxLargestMessages * config.front_end().max_message_bytes()),
        http_body_budget_(inbound_bytes_) {}

  int Run();

 private:
  // The steps of a start, in order.
  absl::Status ReadModel();
  absl::Status Listen();
  absl::Status ListenHttp();
  absl::Status StartWorkers();
  absl::Status Load();
  absl::Status StartEngines();

  // Tells the metrics of the devices.
  void WatchDevices();
  int ServeUntilStopped();
  // False: calls were open when it ended.
  bool Drain();
  void Stop();
  void SetState(ServingState state);
  bool WaitForStop(absl::Duration timeout);
  // Ready or recovering, as the workers are.
  void WatchReadiness();
  void AskToStop();
  void NoteEnginesEnd(const absl::Status& end);
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
  ServedModel model_;
  ServerMetrics server_metrics_;
  AccessControl access_{&server_metrics_};
  std::unique_ptr<TlsContext> tls_;  // null: HTTP is not encrypted
  ReplicaSet replicas_;
  const std::shared_ptr<MetricsCollector> collector_;
  Readiness readiness_;
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
  const size_t inbound_bytes_;  // of each API
  ByteBudget http_body_budget_;
  std::unique_ptr<HttpRoutes> http_routes_;
  std::unique_ptr<HttpServer> http_server_;
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
                                    {&Daemon::StartWorkers, kExitNoDevice},
                                    {&Daemon::Load, kExitBadModel},
                                    {&Daemon::StartEngines, kExitBadModel}};
  const SignalThread signals([this] { AskToStop(); },
                             [this] { operations_.Reload(CheckReady(state_.load()).ok()); });
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
               .engine = nullptr,  // until StartEngines
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
                                                             .engine_metrics = replicas_.metrics(),
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
                         .max_inbound_bytes = std::max(kLeastGrpcBytes, inbound_bytes_)},
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
                      .idle_timeout = absl::Milliseconds(front_end.http_idle_timeout_ms()),
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

absl::Status Daemon::StartWorkers() { return replicas_.StartWorkers(config_); }

absl::Status Daemon::Load() {
  manager_->NoteLoading(absl::StrCat("loading ", model_.name()), kLoadPatience);
  LoadProgressPrinter printer(isatty(STDERR_FILENO) != 0, &clock_);
  const auto show = [this, &printer](const internal::v1::LoadProgress& progress) {
    const absl::optional<std::string> line = printer.Show(progress);
    if (line.has_value()) manager_->NoteLoading(*line, kLoadPatience);
  };
  PAGODA_RETURN_IF_ERROR(replicas_.Load(show, &model_));
  MetricsInfo info = MetricsInfoOf(model_, config_);
  info.load_read_seconds = replicas_.load_read_seconds();
  info.load_warmup_seconds = replicas_.load_warmup_seconds();
  const internal::v1::WorkerHello hello = replicas_.hello();
  info.cuda_version = hello.cuda_version();
  info.nccl_version = hello.nccl_version();
  collector_->SetInfo(std::move(info));
  WatchDevices();
  return absl::OkStatus();
}

void Daemon::WatchDevices() {
  std::vector<DeviceStats> devices = replicas_.Devices();
  std::vector<std::string> pci_bus_ids;
  for (const DeviceStats& device : devices)
    if (!device.pci_bus_id.empty()) pci_bus_ids.push_back(device.pci_bus_id);
  const auto monitor =
      std::make_shared<GpuMonitor>(GpuMonitor::Options{.pci_bus_ids = std::move(pci_bus_ids)});
  collector_->SetDevices(std::move(devices), [monitor] { return monitor->Readings(); });
}

absl::Status Daemon::StartEngines() {
  replicas_.StartEngines({.model = &model_,
                          .sink = shards_.get(),
                          .block_sink = kv_events_.get(),
                          .clock = &clock_,
                          .on_end = [this](const absl::Status& end) { NoteEnginesEnd(end); }});
  services_.engine = replicas_.port();
  shards_->SetEngine(replicas_.port());
  operations_.SetEngines(replicas_.engines());
  if (NumReplicas(config_) == 1) {
    kv_events_->SetWatch([this](uint64_t watch) { replicas_.engine().WatchBlocks(watch); });
  } else {
    kv_events_->EndAll(absl::UnimplementedError(
        "SubscribeKvEvents: a daemon with several replicas routes by prefix itself"));
    collector_->SetReplicas([this] { return replicas_.Stats(); });
  }
  return absl::OkStatus();
}

void Daemon::NoteEnginesEnd(const absl::Status& end) {
  // Here, not on the main thread: readiness is wrong from the moment that nobody computes.
  if (!end.ok()) SetState(ServingState::kFailed);
  MutexLock lock(&mutex_);
  engine_end_ = end;
  is_stopping_ = true;
}

void Daemon::SetState(ServingState state) {
  MutexLock lock(&mutex_);
  // A worker can be lost while the main thread takes the next step.
  const ServingState before = state_.load();
  const bool has_recovered = before == ServingState::kRecovering && state == ServingState::kReady;
  if (state <= before && !has_recovered) return;
  state_.store(state);
  const bool is_ready = state == ServingState::kReady;
  grpc_server_->SetHealth(
      /*lives=*/is_ready || state == ServingState::kRecovering, is_ready);
}

bool Daemon::WaitForStop(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&is_stopping_), timeout);
}

void Daemon::WatchReadiness() {
  // An idle engine would not see that somebody stops its workers.
  replicas_.Nudge();
  const int64_t now_ns = clock_.NowNs();
  const bool was_ready = state_.load() == ServingState::kReady;
  const bool is_ready = readiness_.Update(replicas_.CurrentAbility(now_ns), now_ns);
  if (is_ready == was_ready) return;
  SetState(is_ready ? ServingState::kReady : ServingState::kRecovering);
  LogInfo("%s", is_ready ? "ready again" : "not ready: the workers do not compute");
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
  const Watchdog watchdog(
      manager_, [this] { return replicas_.Pulse(); }, [this] { replicas_.Nudge(); });
  while (!WaitForStop(kReadinessPeriod)) WatchReadiness();
  const bool is_complete = EngineHasEnded() || Drain();
  MutexLock lock(&mutex_);
  if (!engine_end_.has_value() || engine_end_->ok()) return is_complete ? kExitOk : kExitCutOff;
  LogError("given up: %s", engine_end_->message());
  return kExitWorkerLost;
}

bool Daemon::Drain() {
  SetState(ServingState::kDraining);
  const absl::Duration drain_time = absl::Milliseconds(config_.front_end().drain_timeout_ms());
  manager_->NoteStopping("draining: running streams may finish", drain_time + kStopPatience);
  replicas_.Drain();
  if (http_server_ != nullptr) http_server_->Drain();
  const absl::Time limit = absl::Now() + drain_time;
  const bool was_idle = calls_.num_open() == 0;
  while (num_signals_.load() < 2 && absl::Now() < limit) {
    if (calls_.WaitUntilNone(absl::Now() + kDrainPoll)) {
      if (was_idle) return true;
      // Closing connections cuts off what arrives in that moment, and its client cannot know what
      // became of it: who has not heard of the drain is refused, which a balancer takes elsewhere.
      WaitUntilStill(
          server_metrics_.requests_rejected[static_cast<size_t>(RejectReason::kDraining)],
          kQuietTime,
          std::min(limit, absl::Now() + kLastRefusalsTime),
          [this] { return num_signals_.load() >= 2; });
      return true;
    }
    if (EngineHasFailed()) break;
  }
  const int num_open = calls_.num_open();
  if (num_open > 0) LogWarning("ending %d calls that still run", num_open);
  return num_open == 0;
}

void Daemon::Stop() {
  const ExitDeadline hard_exit(kHardExitTime, kExitWorkerLost);
  operations_.Stop();
  access_.StopDelays();
  replicas_.StopEngines(DrainingError());
  calls_.WaitUntilNone(absl::Now() + kFlushTime);
  if (kv_events_ != nullptr) kv_events_->EndAll(DrainingError());
  if (http_server_ != nullptr) http_server_->Shutdown(absl::Now() + kShutdownTime);
  if (grpc_server_ != nullptr) grpc_server_->Shutdown(absl::Now() + kShutdownTime);
  if (kv_events_ != nullptr) kv_events_->Stop();
  if (text_pool_ != nullptr) text_pool_->Stop();
  if (compiler_ != nullptr) compiler_->Stop();
  if (shards_ != nullptr) shards_->Stop();
  replicas_.StopWorkers();
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
