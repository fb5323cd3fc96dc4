#include "daemon/server/metrics_collector.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/server/family_writer.h"
#include "daemon/server/process_stats.h"
#include "daemon/server/replicas/replica_families.h"
#include "daemon/server/rpc_error.h"
#include "daemon/server/vllm/metric_aliases.h"
#include "pagoda_version.h"
#include "parallel/step_pipe.h"

namespace pagoda::daemon {
namespace {

using prometheus::MetricFamily;
using Labels = FamilyWriter::Labels;

constexpr std::array<absl::string_view, engine::kNumOutcomes> kOutcomeNames = {
    "stop", "length", "cancelled", "deadline", "rejected", "error"};
constexpr std::array<absl::string_view, kNumServingStates> kStateNames = {
    "loading", "ready", "recovering", "draining", "failed"};
constexpr std::array<absl::string_view, kNumRejectReasons> kRejectNames = {
    "queue_full", "loading", "draining", "too_long", "invalid", "worker_lost", "auth"};
constexpr std::array<absl::string_view, kNumApis> kApiNames = {"grpc", "vllm_grpc", "http"};

double Load(const std::atomic<uint64_t>& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}

double Value(const engine::MetricCounter& counter) { return static_cast<double>(counter.value()); }

void WriteInfo(const MetricsInfo& info, ServingState state, Families* out) {
  out->Gauge("pagoda_build_info", "Version of the daemon; always 1.")
      .Add(1,
           {{"version", PAGODA_VERSION},
            {"commit", PAGODA_COMMIT},
            {"cuda", info.cuda_version},
            {"nccl", info.nccl_version}});
  out->Gauge("pagoda_model_info", "The served model; always 1.")
      .Add(1,
           {{"model", info.model},
            {"architecture", info.architecture},
            {"dtype", info.dtype},
            {"quantization", "none"},
            {"device", info.device},
            {"revision", info.revision},
            {"max_context", absl::StrCat(info.max_context_tokens)}});
  out->Gauge("pagoda_kv_cache_config_info", "Shape of the KV cache; always 1.")
      .Add(1,
           {{"block_size", absl::StrCat(info.kv_block_tokens)},
            {"num_blocks", absl::StrCat(info.num_kv_blocks)},
            {"dtype", info.dtype}});
  FamilyWriter states =
      out->Gauge("pagoda_up_state", "1 for the state that the daemon is in, 0 for the others.");
  for (size_t i = 0; i < kStateNames.size(); ++i) {
    states.Add(i == static_cast<size_t>(state) ? 1 : 0, {{"state", std::string(kStateNames[i])}});
  }
  out->Gauge("pagoda_load_seconds", "Time that loading the model took, by phase.")
      .Add(info.load_read_seconds, {{"phase", "read"}})
      .Add(info.load_warmup_seconds, {{"phase", "warmup"}});
}

void WriteRequests(const engine::EngineMetrics& engine,
                   const ServerMetrics& server,
                   const Labels& model,
                   Families* out) {
  out->Gauge("pagoda_requests_running", "Sequences that take part in steps.")
      .Add(engine.requests_running.value(), model);
  out->Gauge("pagoda_requests_waiting", "Sequences that wait for their first step.")
      .Add(engine.requests_waiting.value(), model);
  out->Gauge("pagoda_requests_swapped", "Sequences that were preempted and wait to be resumed.")
      .Add(engine.requests_preempted_waiting.value(), model);
  const auto with_api = [&model](size_t api) {
    Labels labels = model;
    labels.push_back({"api", std::string(kApiNames[api])});
    return labels;
  };
  FamilyWriter received =
      out->Counter("pagoda_requests_received_total", "Generation calls that arrived.");
  for (size_t api = 0; api < kNumApis; ++api) {
    received.Add(Load(server.apis[api].requests_received), with_api(api));
  }
  FamilyWriter finished =
      out->Counter("pagoda_requests_finished_total",
                   "Generation calls that ended, each once, by outcome and status.");
  for (size_t api = 0; api < kNumApis; ++api) {
    for (size_t outcome = 0; outcome < engine::kNumOutcomes; ++outcome) {
      for (size_t code = 0; code < kNumGrpcCodes; ++code) {
        const double count = Load(server.apis[api].requests_finished[outcome][code]);
        // Most pairs cannot happen; those that do stay for good.
        if (count == 0) continue;
        Labels labels = with_api(api);
        labels.push_back({"outcome", std::string(kOutcomeNames[outcome])});
        labels.push_back({"code", std::string(GrpcCodeName(code))});
        finished.Add(count, std::move(labels));
      }
    }
  }
  FamilyWriter rejected = out->Counter("pagoda_requests_rejected_total",
                                       "Generation calls turned away before the engine took them, "
                                       "and calls of every kind without the key that they need.");
  for (size_t i = 0; i < kNumRejectReasons; ++i) {
    rejected.Add(Load(server.requests_rejected[i]), {{"reason", std::string(kRejectNames[i])}});
  }
}

void WriteTokens(const engine::EngineMetrics& engine, const Labels& model, Families* out) {
  const auto with = [&model](const char* name, const char* value) {
    Labels labels = model;
    labels.push_back({name, value});
    return labels;
  };
  out->Counter("pagoda_prompt_tokens_total",
               "Prompt tokens, by where their keys and values came from.")
      .Add(Value(engine.prompt_tokens_computed), with("source", "computed"))
      .Add(Value(engine.prompt_tokens_cached), with("source", "cached"));
  out->Counter("pagoda_generation_tokens_total", "Tokens sampled.")
      .Add(Value(engine.generation_tokens), model);
  out->Counter("pagoda_spec_drafts_total", "Drafts that were tried, one a sequence and step.")
      .Add(Value(engine.spec_drafts), model);
  out->Counter("pagoda_spec_draft_tokens_total", "Tokens of drafts that were tried.")
      .Add(Value(engine.spec_draft_tokens), model);
  out->Counter("pagoda_spec_accepted_tokens_total",
               "Tokens of drafts that were what the model said.")
      .Add(Value(engine.spec_accepted_tokens), model);
  out->Counter("pagoda_prefix_cache_query_tokens_total",
               "Prompt tokens looked up in the prefix cache.")
      .Add(Value(engine.prefix_query_tokens), model);
  out->Counter("pagoda_prefix_cache_hit_tokens_total", "Prompt tokens found in the prefix cache.")
      .Add(Value(engine.prefix_hit_tokens), model);
  out->Histogram("pagoda_request_prompt_tokens", "Prompt tokens of a request.")
      .AddHistogram(engine.request_prompt_tokens, model);
  out->Histogram("pagoda_request_generation_tokens", "Tokens that a request generated.")
      .AddHistogram(engine.request_generation_tokens, model);
}

void WriteKv(const engine::EngineMetrics& engine, const Labels& model, Families* out) {
  const auto state = [](const char* name) { return Labels{{"pool", "0"}, {"state", name}}; };
  out->Gauge("pagoda_kv_blocks",
             "Blocks of the KV cache; cached ones hold a prefix and can be taken.")
      .Add(engine.kv_blocks_used.value(), state("used"))
      .Add(engine.kv_blocks_cached.value(), state("cached"))
      .Add(engine.kv_blocks_free.value(), state("free"));
  const double total = engine.kv_blocks_total.value();
  out->Gauge("pagoda_kv_cache_usage_ratio", "Share of the KV blocks that sequences use.")
      .Add(total > 0 ? engine.kv_blocks_used.value() / total : 0.0, model);
  out->Counter("pagoda_preemptions_total",
               "Sequences that lost their blocks and were computed again.")
      .Add(Value(engine.preemptions), {{"reason", "kv_full"}});
  out->Counter("pagoda_kv_evictions_total", "Cached blocks that were taken for something else.")
      .Add(Value(engine.kv_evictions), {{"reason", "reuse"}});
}

void WriteLatencies(const engine::EngineMetrics& engine,
                    const ServerMetrics& server,
                    const Labels& model,
                    Families* out) {
  const auto with_stream = [&model](const char* value) {
    Labels labels = model;
    labels.push_back({"stream", value});
    return labels;
  };
  out->Histogram("pagoda_time_to_first_token_seconds", "From a call's arrival to its first token.")
      .AddHistogram(server.stream_first_token_seconds, with_stream("true"))
      .AddHistogram(server.unary_first_token_seconds, with_stream("false"));
  out->Histogram("pagoda_inter_token_latency_seconds",
                 "Between two tokens of a sequence, weighted by tokens.")
      .AddHistogram(engine.inter_token_seconds, model);
  out->Histogram("pagoda_request_duration_seconds", "From a request's arrival to its end.")
      .AddHistogram(engine.request_seconds, model);
  out->Histogram("pagoda_request_queue_seconds", "From a request's arrival to its first step.")
      .AddHistogram(engine.queue_seconds, model);
  out->Histogram("pagoda_request_prefill_seconds",
                 "From a request's first step to the end of its prompt.")
      .AddHistogram(engine.prefill_seconds, model);
  out->Histogram("pagoda_request_decode_seconds", "From a request's first token to its end.")
      .AddHistogram(engine.decode_seconds, model);
  out->Histogram("pagoda_request_tokenize_seconds",
                 "From a request's arrival to the end of its checks and encoding.")
      .AddHistogram(server.tokenize_seconds, model);
  out->Histogram("pagoda_cancel_to_free_seconds",
                 "From a cancellation to the release of the request's blocks.")
      .AddHistogram(engine.cancel_to_free_seconds);
}

void WriteWorkers(const engine::EngineMetrics& engine, Families* out) {
  FamilyWriter restarts =
      out->Counter("pagoda_worker_restarts_total",
                   "Times that lost workers were replaced, by how they were lost.");
  for (size_t i = 0; i < engine.worker_restarts.size(); ++i) {
    const auto cause = static_cast<parallel::WorkerFailure::Cause>(i);
    restarts.Add(Value(engine.worker_restarts[i]),
                 {{"cause", std::string(parallel::WorkerFailureCauseName(cause))}});
  }
  out->Counter("pagoda_recovered_sequences_total",
               "Sequences that were computed again after a loss of workers.")
      .Add(Value(engine.recovered_sequences));
  out->Counter("pagoda_requests_quarantined_total",
               "Requests ended because workers failed at them.")
      .Add(Value(engine.quarantined_requests));
  out->Histogram("pagoda_recovery_seconds", "From a loss of workers to the next result.")
      .AddHistogram(engine.recovery_seconds);
}

void WriteSteps(const engine::EngineMetrics& engine, Families* out) {
  out->Counter("pagoda_steps_total", "Steps run.").Add(Value(engine.steps));
  out->Histogram("pagoda_step_duration_seconds", "Time of a step on the worker, by what it held.")
      .AddHistogram(engine.step_prefill_seconds, {{"phase", "prefill"}})
      .AddHistogram(engine.step_decode_seconds, {{"phase", "decode"}})
      .AddHistogram(engine.step_mixed_seconds, {{"phase", "mixed"}});
  out->Histogram("pagoda_step_tokens", "Tokens computed by a step.")
      .AddHistogram(engine.step_tokens);
  out->Histogram("pagoda_step_batch_size", "Sequences in a step.")
      .AddHistogram(engine.step_batch_size);
}

void WriteStreams(const ServerMetrics& server, Families* out) {
  const auto open = [&server](Api api) {
    return static_cast<double>(server.of(api).open_calls.load(std::memory_order_relaxed));
  };
  out->Gauge("pagoda_grpc_streams", "Generation calls by gRPC that are open.")
      .Add(open(Api::kGrpc) + open(Api::kVllmGrpc));
  out->Gauge("pagoda_http_streams", "Generation calls by HTTP that are open.")
      .Add(open(Api::kHttp));
  out->Gauge("pagoda_http_connections", "HTTP connections that are open.")
      .Add(static_cast<double>(server.http_connections.load(std::memory_order_relaxed)));
  const auto add = [&server](FamilyWriter family, std::atomic<uint64_t> ApiMetrics::*counter) {
    for (size_t api = 0; api < kNumApis; ++api)
      family.Add(Load(server.apis[api].*counter), {{"api", std::string(kApiNames[api])}});
  };
  add(out->Counter("pagoda_stream_messages_total", "Messages written to streams."),
      &ApiMetrics::stream_messages);
  add(out->Counter("pagoda_stream_coalesced_tokens_total",
                   "Tokens that joined a message waiting for a slow reader."),
      &ApiMetrics::stream_coalesced_tokens);
  add(out->Counter("pagoda_stream_stalls_total",
                   "Streams ended because their reader was too slow."),
      &ApiMetrics::stream_stalls);
}

void WriteProcess(Families* out) {
  const ProcessStats stats = ReadProcessStats();
  out->Counter("process_cpu_seconds_total", "CPU time of the daemon.").Add(stats.cpu_seconds);
  out->Gauge("process_start_time_seconds", "When the daemon started, since the epoch.")
      .Add(stats.start_time_seconds);
  out->Gauge("process_resident_memory_bytes", "Resident memory of the daemon.")
      .Add(static_cast<double>(stats.resident_bytes));
  out->Gauge("process_virtual_memory_bytes", "Virtual memory of the daemon.")
      .Add(static_cast<double>(stats.virtual_bytes));
  out->Gauge("process_open_fds", "Open file descriptors of the daemon.")
      .Add(static_cast<double>(stats.num_open_fds));
  out->Gauge("process_max_fds", "Most file descriptors that the daemon may open.")
      .Add(static_cast<double>(stats.max_fds));
  out->Gauge("process_threads", "Threads of the daemon.")
      .Add(static_cast<double>(stats.num_threads));
}

}  // namespace

void MetricsCollector::SetInfo(MetricsInfo info) {
  MutexLock lock(&mutex_);
  info_ = std::move(info);
}

void MetricsCollector::SetReplicas(std::function<std::vector<ReplicaStats>()> replicas) {
  MutexLock lock(&mutex_);
  replicas_ = std::move(replicas);
}

void MetricsCollector::SetDevices(std::vector<DeviceStats> devices,
                                  std::function<GpuReadings()> readings) {
  MutexLock lock(&mutex_);
  devices_ = std::move(devices);
  gpu_readings_ = std::move(readings);
}

std::vector<MetricFamily> MetricsCollector::Collect() const {
  MetricsInfo info;
  std::vector<DeviceStats> devices;
  GpuReadings readings;
  std::vector<ReplicaStats> replicas;
  {
    MutexLock lock(&mutex_);
    info = info_;
    if (replicas_) replicas = replicas_();
    devices = devices_;
    if (gpu_readings_) readings = gpu_readings_();
  }
  const Labels model = {{"model", info.model}};
  Families out;
  WriteInfo(info, state_(), &out);
  engine_.With([&](const engine::EngineMetrics& engine) {
    WriteRequests(engine, *server_, model, &out);
    WriteTokens(engine, model, &out);
    WriteKv(engine, model, &out);
    WriteLatencies(engine, *server_, model, &out);
    WriteSteps(engine, &out);
    WriteWorkers(engine, &out);
    WriteReplicas(replicas, &out);
    WriteDevices(devices, readings, &out);
    WriteStreams(*server_, &out);
    WriteProcess(&out);
    WriteVllmAliases(engine, *server_, info, &out);
  });
  return out.Take();
}

}  // namespace pagoda::daemon
