#include "daemon/client/bench_load.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <time.h>

#include "absl/container/flat_hash_set.h"
#include "daemon/client/bench_http_load.h"
#include "daemon/client/bench_schedule.h"
#include "daemon/client/failure.h"
#include "grpcpp/completion_queue.h"
#include "kernels/base/check.h"
#include "pagoda/v1/inference.grpc.pb.h"

namespace pagoda::daemon {
namespace {

// How often a thread looks whether it is to stop.
constexpr int64_t kPollNs = 50'000'000;

// One request on its way. Lives until its status has come.
struct Call {
  enum class Stage { kStarting, kReading, kFinishing };
  Stage stage = Stage::kStarting;
  grpc::ClientContext context;
  v1::StreamGenerateRequest request;
  v1::StreamGenerateResponse response;
  std::unique_ptr<grpc::ClientAsyncReader<v1::StreamGenerateResponse>> reader;
  grpc::Status status;
  RequestOutcome outcome;
};

// One thread's part of the load: requests thread_idx, thread_idx + num_threads, ... of an open
// loop, or its share of the places of a closed one. Used by its own thread only.
class LoadThread {
 public:
  LoadThread(const BenchLoad& load,
             int64_t thread_idx,
             std::atomic<int64_t>* next_request,
             int64_t start_ns)
      : load_(load), thread_idx_(thread_idx), schedule_(load, thread_idx, next_request, start_ns) {
    for (const auto& channel : load.channels)
      stubs_.push_back(v1::InferenceService::NewStub(channel));
  }

  void Run() {
    const int64_t cpu_start_ns = ThreadCpuNs();
    const int64_t run_start_ns = load_.clock->NowNs();
    bool is_cancelled = false;
    for (;;) {
      if (load_.interrupted->load() && !is_cancelled) {
        for (Call* call : calls_) call->context.TryCancel();
        is_cancelled = true;
      }
      const int64_t next_ns = is_cancelled ? kNever : StartDueRequests();
      if (calls_.empty() && next_ns == kNever) break;
      WaitForEvent(std::min(next_ns, load_.clock->NowNs() + kPollNs));
    }
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
    const int64_t elapsed_ns = std::max<int64_t>(1, load_.clock->NowNs() - run_start_ns);
    busy_ = static_cast<double>(ThreadCpuNs() - cpu_start_ns) / static_cast<double>(elapsed_ns);
  }

  std::vector<RequestOutcome>& outcomes() { return outcomes_; }
  double busy() const { return busy_; }

 private:
  static constexpr int64_t kNever = BenchSchedule::kNever;

  // Starts what is due; returns when the next request is, kNever when only an event can make one
  // due or none is left.
  int64_t StartDueRequests() {
    while (const auto due = schedule_.Take(static_cast<int64_t>(calls_.size())))
      Start(due->request, due->due_ns);
    return schedule_.next_ns();
  }

  void Start(int64_t request, int64_t due_ns) {
    Call* call = new Call;
    calls_.insert(call);
    call->request = PlanRequest(load_.options, load_.ids, load_.first_index + request);
    call->outcome.num_asked_tokens = call->request.stopping().max_tokens();
    call->outcome.due_ns = due_ns;
    PrepareCall(load_.options.connection, &call->context);
    auto& stub = stubs_[(thread_idx_ + num_started_++) % stubs_.size()];
    call->reader = stub->PrepareAsyncStreamGenerate(&call->context, call->request, &queue_);
    call->outcome.sent_ns = load_.clock->NowNs();
    if (load_.progress != nullptr) load_.progress->num_started.fetch_add(1);
    call->reader->StartCall(call);
  }

  void WaitForEvent(int64_t until_ns) {
    const int64_t wait_ns = std::max<int64_t>(0, until_ns - load_.clock->NowNs());
    const auto deadline = std::chrono::system_clock::now() + std::chrono::nanoseconds(wait_ns);
    void* tag;
    bool ok;
    if (queue_.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT) {
      OnEvent(static_cast<Call*>(tag), ok);
    }
  }

  void OnEvent(Call* call, bool ok) {
    const int64_t now_ns = load_.clock->NowNs();
    if (call->stage == Call::Stage::kFinishing) return End(call, now_ns);
    if (!ok) {
      call->stage = Call::Stage::kFinishing;
      return call->reader->Finish(&call->status, call);
    }
    if (call->stage == Call::Stage::kReading) See(call->response, now_ns, &call->outcome);
    call->stage = Call::Stage::kReading;
    call->reader->Read(&call->response, call);
  }

  void See(const v1::StreamGenerateResponse& response, int64_t now_ns, RequestOutcome* outcome) {
    if (response.has_started()) {
      outcome->num_prompt_tokens = response.started().prompt_tokens();
      outcome->num_cached_tokens = response.started().cached_tokens();
    }
    NoteTokens(response.delta().token_ids_size(), now_ns, load_.progress, outcome);
  }

  void End(Call* call, int64_t now_ns) {
    call->outcome.end_ns = now_ns;
    if (!call->status.ok()) call->outcome.failure = FailureKind(call->status);
    outcomes_.push_back(std::move(call->outcome));
    if (load_.progress != nullptr) load_.progress->num_ended.fetch_add(1);
    calls_.erase(call);
    delete call;
  }

  const BenchLoad& load_;
  const int64_t thread_idx_;
  BenchSchedule schedule_;
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs_;
  grpc::CompletionQueue queue_;
  absl::flat_hash_set<Call*> calls_;  // owned; an event of the queue holds each too
  size_t num_started_ = 0;
  std::vector<RequestOutcome> outcomes_;
  double busy_ = 0;
};

template <typename Thread>
LoadOutcome RunThreads(const BenchLoad& load) {
  std::atomic<int64_t> next_request{0};
  const int64_t start_ns = load.clock->NowNs();
  std::vector<std::unique_ptr<Thread>> parts;
  for (int64_t i = 0; i < load.options.num_threads; ++i) {
    parts.push_back(std::make_unique<Thread>(load, i, &next_request, start_ns));
  }
  std::vector<std::thread> threads;
  for (const auto& part : parts) threads.emplace_back([&part] { part->Run(); });
  for (std::thread& thread : threads) thread.join();
  LoadOutcome outcome;
  for (const auto& part : parts) {
    for (RequestOutcome& request : part->outcomes()) outcome.requests.push_back(std::move(request));
    outcome.client.busiest_thread = std::max(outcome.client.busiest_thread, part->busy());
  }
  return outcome;
}

}  // namespace

int64_t ThreadCpuNs() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

void NoteTokens(int64_t num_tokens,
                int64_t now_ns,
                BenchProgress* progress,
                RequestOutcome* outcome) {
  if (num_tokens == 0) return;
  if (outcome->first_ns == 0) {
    outcome->first_ns = now_ns;
  } else {
    outcome->gaps_ms.push_back(
        static_cast<float>(static_cast<double>(now_ns - outcome->last_ns) * 1e-6));
  }
  outcome->last_ns = now_ns;
  outcome->num_output_tokens += num_tokens;
  if (progress != nullptr) progress->num_output_tokens.fetch_add(num_tokens);
}

LoadOutcome RunLoad(const BenchLoad& load) {
  PAGODA_CHECK(load.interrupted != nullptr);
  if (load.options.http.has_value()) return RunThreads<HttpLoadThread>(load);
  PAGODA_CHECK(!load.channels.empty());
  return RunThreads<LoadThread>(load);
}

}  // namespace pagoda::daemon
