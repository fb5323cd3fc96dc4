#include "engine/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/errors.h"
#include "engine/step_metrics.h"
#include "kernels/base/check.h"

namespace pagoda::engine {
namespace {

SchedulerOptions SchedulerOptionsOf(const internal::v1::EngineConfig& config) {
  return {.max_num_seqs = static_cast<int32_t>(config.max_num_seqs()),
          .max_num_batched_tokens = static_cast<int32_t>(config.max_num_batched_tokens()),
          .max_prefill_chunk_tokens = static_cast<int32_t>(config.max_prefill_chunk_tokens()),
          .by_priority = config.policy() == internal::v1::SCHEDULING_POLICY_PRIORITY};
}

SequenceBlocks::Options BlockOptionsOf(const EngineOptions& options) {
  const internal::v1::EngineConfig& config = options.config;
  const int64_t max_tokens_in_flight = int64_t{config.max_num_batched_tokens()} *
                                       std::max<uint32_t>(config.max_steps_in_flight(), 1);
  return {.block_size = static_cast<int32_t>(config.block_size()),
          .prefix_caching = config.prefix_caching(),
          .window = options.kv_window,
          .max_tokens_in_flight =
              static_cast<int32_t>(std::min<int64_t>(max_tokens_in_flight, options.max_model_len))};
}

// Clamps a bound that may be any unsigned number to what sums of it can hold.
int64_t Bound(uint64_t limit) {
  return static_cast<int64_t>(std::min<uint64_t>(limit, std::numeric_limits<int64_t>::max() / 2));
}

}  // namespace

Engine::Impl::Impl(EngineOptions options)
    : options_(std::move(options)),
      max_steps_in_flight_(std::max<uint32_t>(options_.config.max_steps_in_flight(), 1)),
      own_group_(options_.group == nullptr
                     ? std::make_unique<EngineGroup>(options_.config.prefix_hash_key())
                     : nullptr),
      group_(options_.group == nullptr ? *own_group_ : *options_.group),
      vocabulary_(options_.tokenizer, options_.vocab_size),
      intake_({.max_waiting_requests = Bound(options_.config.max_waiting_requests()),
               .max_waiting_tokens = Bound(options_.config.max_waiting_tokens())}),
      has_workers_(options_.pipe != nullptr && options_.pipe->is_ready()),
      pool_(static_cast<uint32_t>(options_.num_kv_blocks), options_.config.block_size()),
      blocks_(BlockOptionsOf(options_), &pool_, &group_.hasher),
      scheduler_(SchedulerOptionsOf(options_.config), &blocks_),
      outputs_(options_.metrics),
      applier_(&scheduler_, &blocks_, &outputs_, options_.metrics),
      builder_(options_.vocab_size, options_.tokenizer),
      requests_(options_.metrics),
      recovery_({.max_restarts = options_.config.max_worker_restarts(),
                 .window_ns = options_.config.worker_restart_window_ms() * int64_t{1'000'000},
                 .log_prefix = options_.log_prefix},
                {.pipe = options_.pipe,
                 .scheduler = &scheduler_,
                 .requests = &requests_,
                 .applier = &applier_,
                 .quarantine = &group_.quarantine,
                 .metrics = options_.metrics}),
      steps_(max_steps_in_flight_) {
  PAGODA_CHECK(options_.pipe != nullptr && options_.sink != nullptr &&
               options_.metrics != nullptr && options_.clock != nullptr &&
               options_.num_kv_blocks > 0 && options_.max_model_len > 0);
  builder_.set_vocabulary(&vocabulary_);
  SetGauges(scheduler_, pool_, options_.metrics);
}

// ---- Any thread

absl::Status Engine::Impl::CheckFits(const Request& request) const {
  const int64_t num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (num_prompt_tokens > options_.max_model_len) {
    return PromptExceedsContextError(num_prompt_tokens, options_.max_model_len);
  }
  const int64_t num_blocks = blocks_.NumHeldBlocks(static_cast<int32_t>(num_prompt_tokens));
  if (num_blocks > options_.num_kv_blocks) {
    return PromptExceedsPoolError(
        num_prompt_tokens, num_blocks, options_.config.block_size(), options_.num_kv_blocks);
  }
  const bool needs_tokenizer =
      !request.stop.stop_strings.empty() || request.sampling.constraint != nullptr;
  if (options_.tokenizer == nullptr && needs_tokenizer) return MissingTokenizerError();
  return absl::OkStatus();
}

absl::Status Engine::Impl::CheckTrusted(const Request& request) const {
  const bool is_held = group_.quarantine.Holds(request.prompt, options_.clock->NowNs());
  return is_held ? QuarantinedError() : absl::OkStatus();
}

absl::Status Engine::Impl::TrySubmit(Request* request) {
  PAGODA_CHECK(!request->prompt.empty());
  if (absl::Status status = CheckFits(*request); !status.ok()) return status;
  if (absl::Status status = CheckTrusted(*request); !status.ok()) return status;
  // Here rather than on the engine thread, which then finds it made.
  if (request->sampling.constraint != nullptr) vocabulary_.bytes();
  if (absl::Status status = intake_.Reserve(Intake::LoadOf(*request),
                                            Intake::ArrivalOf(*request, options_.clock->NowNs()));
      !status.ok()) {
    return status;
  }
  auto live = std::make_unique<LiveRequest>(
      std::move(*request), options_.max_model_len, options_.tokenizer);
  if (options_.config.prefix_caching()) {
    live->HashPrompt(group_.hasher, static_cast<int32_t>(options_.config.block_size()));
  }
  num_live_.fetch_add(1, std::memory_order_relaxed);
  absl::Status status = intake_.Push(&live);
  if (status.ok()) return status;
  num_live_.fetch_sub(1, std::memory_order_relaxed);
  *request = std::move(live->request);
  return status;
}

bool Engine::Impl::Adopt(std::unique_ptr<LiveRequest>* request) {
  if ((*request)->request.sampling.constraint != nullptr) vocabulary_.bytes();
  num_live_.fetch_add(1, std::memory_order_relaxed);
  const bool is_taken = intake_.PushAdopted(request, options_.clock->NowNs());
  if (!is_taken) num_live_.fetch_sub(1, std::memory_order_relaxed);
  return is_taken;
}

void Engine::Impl::Stop(const absl::Status& why) {
  {
    MutexLock lock(&stop_mutex_);
    if (!stop_.has_value()) stop_ = why.ok() ? StoppedError(why) : why;
  }
  intake_.Close(StoppedError(why));
}

void Engine::Impl::WatchBlocks(uint64_t watch) {
  PAGODA_CHECK(options_.block_sink != nullptr);
  wanted_watch_.store(watch, std::memory_order_release);
  intake_.Wake();
}

bool Engine::Impl::Post(std::function<void()> task) {
  const bool is_taken = tasks_.Post(std::move(task));
  intake_.Wake();
  return is_taken;
}

bool Engine::Impl::FlushPrefixCache(std::function<void(uint64_t)> done) {
  return Post([this, done = std::move(done)] { done(ForgetPrefixes()); });
}

bool Engine::Impl::DumpState(std::function<void(EngineState)> done) {
  return Post([this, done = std::move(done)] { done(DescribeState()); });
}

// ---- The public class

Engine::Engine(EngineOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Engine::~Engine() = default;

absl::Status Engine::Submit(Request request) { return impl_->TrySubmit(&request); }
absl::Status Engine::TrySubmit(Request* request) { return impl_->TrySubmit(request); }
bool Engine::Adopt(std::unique_ptr<LiveRequest>* request) { return impl_->Adopt(request); }
void Engine::Cancel(RequestKey key) { impl_->Cancel(key); }
absl::Status Engine::Run() { return impl_->Run(); }
void Engine::Drain() { impl_->Drain(); }
void Engine::WatchBlocks(uint64_t watch) { impl_->WatchBlocks(watch); }
bool Engine::FlushPrefixCache(std::function<void(uint64_t)> done) {
  return impl_->FlushPrefixCache(std::move(done));
}
bool Engine::DumpState(std::function<void(EngineState)> done) {
  return impl_->DumpState(std::move(done));
}
void Engine::Stop(absl::Status why) { impl_->Stop(why); }
int32_t Engine::num_live_requests() const { return impl_->num_live_requests(); }
bool Engine::has_workers() const { return impl_->has_workers(); }
int64_t Engine::late_at_ns() const { return impl_->late_at_ns(); }

}  // namespace pagoda::engine
