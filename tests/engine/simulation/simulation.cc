#include "tests/engine/simulation/simulation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pagoda::engine::simulation {
namespace {

using Cause = parallel::WorkerFailure::Cause;

constexpr uint32_t kVocab = 60;
// Tokens that shared beginnings of prompts are made of. The last are bad ones, where there are any.
constexpr uint32_t kNumShared = 14;
constexpr uint32_t kDeadlyToken = kNumShared - 2, kPoisonousToken = kNumShared - 1;
constexpr uint64_t kMostSteps = 4000;
// A reader that leaves more than this is given up by the front end.
constexpr int64_t kMostUnread = 40;

// What follows is a function of the last token most of the time, so that drafts are right.
uint32_t SampleRepetitively(const std::vector<uint32_t>& tokens, uint64_t seed) {
  const uint64_t change = tokens.size() % 9 == 0 ? seed : 0;
  return static_cast<uint32_t>((tokens.back() * 7 + 1 + change) % kVocab);
}

// Few letters, so that stop strings are met, within tokens and across them.
std::vector<std::string> TokenTexts() {
  std::vector<std::string> texts;
  for (uint32_t i = 0; i < kVocab; ++i) {
    std::string text(1, static_cast<char>('a' + i % 5));
    if (i % 3 == 1) text += static_cast<char>('a' + i / 5 % 5);
    if (i % 7 == 2) text += "ab";
    texts.push_back(i % 11 == 10 ? " " : text);
  }
  return texts;
}

}  // namespace

void SimulationReport::Add(const SimulationReport& other) {
  if (violation.empty()) violation = other.violation;
  simulated_ns += other.simulated_ns;
  busy_ns += other.busy_ns;
  num_steps += other.num_steps;
  num_requests += other.num_requests;
  num_refused += other.num_refused;
  num_tokens += other.num_tokens;
  num_cancelled += other.num_cancelled;
  num_past_deadline += other.num_past_deadline;
  num_slow_readers += other.num_slow_readers;
  num_preemptions += other.num_preemptions;
  num_restarts += other.num_restarts;
  num_quarantined += other.num_quarantined;
  num_hit_tokens += other.num_hit_tokens;
  num_drafts_accepted += other.num_drafts_accepted;
  num_beams += other.num_beams;
  num_stop_strings += other.num_stop_strings;
  most_wait_steps = std::max(most_wait_steps, other.most_wait_steps);
}

std::string SimulationReport::Text() const {
  return absl::StrFormat(
      "%.2f simulated hours (workers busy %.2f), %d steps, %d requests (%d refused), %d tokens; %d "
      "cancelled, %d past their deadline, %d slow readers, %d stop strings, %d beam searches; %d "
      "preemptions, %d restarts, %d quarantined, %d tokens from the cache, %d drafted; longest "
      "wait "
      "%d steps",
      static_cast<double>(simulated_ns) / 3.6e12,
      static_cast<double>(busy_ns) / 3.6e12,
      num_steps,
      num_requests,
      num_refused,
      num_tokens,
      num_cancelled,
      num_past_deadline,
      num_slow_readers,
      num_stop_strings,
      num_beams,
      num_preemptions,
      num_restarts,
      num_quarantined,
      num_hit_tokens,
      num_drafts_accepted,
      most_wait_steps);
}

Simulation::Simulation(uint64_t seed) : random_(seed) { MakeSystem(); }
Simulation::~Simulation() = default;

void Simulation::MakeSystem() {
  config_ = EngineHarness::DefaultOptions().config;
  num_blocks_ = static_cast<int32_t>(OneIn(2) ? Draw(6, 40) : Draw(40, 300));
  if (OneIn(4)) kv_window_ = static_cast<int32_t>(Draw(1, 60));
  config_.set_block_size(static_cast<uint32_t>(Draw(1, 16)));
  config_.set_max_num_seqs(static_cast<uint32_t>(OneIn(2) ? Draw(1, 8) : Draw(8, 48)));
  config_.set_max_num_batched_tokens(static_cast<uint32_t>(OneIn(2) ? Draw(1, 32) : Draw(32, 200)));
  config_.set_max_steps_in_flight(OneIn(3) ? 1 : 2);
  config_.set_prefix_caching(!OneIn(4));
  config_.set_max_prefill_chunk_tokens(static_cast<uint32_t>(OneIn(2) ? 0 : Draw(1, 16)));
  config_.set_max_waiting_requests(static_cast<uint64_t>(Draw(2, 80)));
  config_.set_max_waiting_tokens(static_cast<uint64_t>(Draw(100, 4000)));
  if (OneIn(4)) config_.set_policy(internal::v1::SCHEDULING_POLICY_PRIORITY);
  has_faults_ = !OneIn(3);
  gives_up_ = has_faults_ && OneIn(8);
  config_.set_max_worker_restarts(gives_up_ ? 2 : 1'000'000);
  config_.set_worker_restart_window_ms(600'000);
  if (OneIn(2)) tokenizer_ = std::make_unique<FakeTokenizer>(TokenTexts());
  model_ = {.vocab_size = kVocab,
            .max_model_len = static_cast<int32_t>(Draw(24, 160)),
            .tokenizer = tokenizer_.get(),
            .sample = OneIn(2) ? &SampleRepetitively : nullptr};

  step_ns_ = Draw(500, 20'000) * kMicrosecond;
  token_ns_ = Draw(1, 200) * kMicrosecond;
  workers_ = std::make_unique<SimulatedWorkers>(
      SimulatedWorkers::Options{.fake = {.num_slots = config_.max_num_seqs(),
                                         .num_blocks = static_cast<uint32_t>(num_blocks_),
                                         .block_size = config_.block_size(),
                                         .window = static_cast<uint32_t>(kv_window_),
                                         .max_num_batched_tokens = config_.max_num_batched_tokens(),
                                         .max_steps_in_flight = config_.max_steps_in_flight(),
                                         .vocab_size = kVocab},
                                .step_ns = step_ns_,
                                .token_ns = token_ns_,
                                .start_ns = Draw(100, 20'000) * kMillisecond,
                                .seed = random_()},
      &clock_);
  workers_->pass_time = [this](int64_t until_ns) { PassTime(until_ns); };
  if (model_.sample != nullptr) workers_->fake().sample = model_.sample;
  if (has_faults_ && OneIn(4)) workers_->fake().deadly_tokens = {kDeadlyToken};
  if (OneIn(5)) workers_->fake().poisonous_tokens = {kPoisonousToken};
  engine_ = std::make_unique<Engine>(EngineOptions{.config = config_,
                                                   .max_model_len = model_.max_model_len,
                                                   .vocab_size = kVocab,
                                                   .num_kv_blocks = num_blocks_,
                                                   .kv_window = kv_window_,
                                                   .pipe = workers_.get(),
                                                   .sink = this,
                                                   .block_sink = &block_sink_,
                                                   .metrics = &metrics_,
                                                   .tokenizer = tokenizer_.get(),
                                                   .clock = &clock_});
}

void Simulation::At(int64_t time_ns, EventKind kind, uint64_t key) {
  events_.push({time_ns, next_order_++, kind, key});
}

SimulationReport Simulation::Run() {
  const int64_t begin_ns = clock_.NowNs();
  end_ns_ = begin_ns + Draw(60, 3600) * kSecond;
  At(begin_ns, EventKind::kPhase);
  At(begin_ns, EventKind::kArrival);
  if (has_faults_) At(begin_ns + Draw(1, 60) * kSecond, EventKind::kFault);
  if (OneIn(3)) At(begin_ns + Draw(0, 60) * kSecond, EventKind::kWatch);
  if (OneIn(4)) At(begin_ns + Draw(30, 3600) * kSecond, EventKind::kDrain);
  const absl::Status status = engine_->Run();
  if (!status.ok() && !gives_up_) Violate(absl::StrCat("the engine ended: ", status.ToString()));
  CheckOver();
  report_.simulated_ns = clock_.NowNs() - begin_ns;
  report_.busy_ns = workers_->busy_ns();
  report_.num_steps = workers_->num_steps();
  report_.num_preemptions = metrics_.preemptions.value();
  report_.num_restarts = workers_->num_restarts();
  report_.num_quarantined = metrics_.quarantined_requests.value();
  report_.num_hit_tokens = metrics_.prefix_hit_tokens.value();
  report_.num_drafts_accepted = metrics_.spec_accepted_tokens.value();
  return report_;
}

void Simulation::PassTime(int64_t until_ns) {
  if (std::exchange(is_woken_, false)) return;
  CheckWaiting();
  if (workers_->num_steps() > kMostSteps) end_ns_ = std::min(end_ns_, clock_.NowNs());
  const bool is_over =
      clock_.NowNs() >= end_ns_ && clients_.empty() && workers_->num_in_flight() == 0;
  if (is_over || !report_.violation.empty()) {
    engine_->Stop(absl::UnavailableError("the simulation is over"));
    return;
  }
  if (events_.empty() || events_.top().time_ns > until_ns) {
    if (until_ns == kNever) {
      Violate("the engine waits for nothing");
      engine_->Stop(absl::UnavailableError("the simulation is over"));
      return;
    }
    clock_.AdvanceTo(until_ns);
    return;
  }
  clock_.AdvanceTo(events_.top().time_ns);
  while (!events_.empty() && events_.top().time_ns <= clock_.NowNs()) {
    const Event event = events_.top();
    events_.pop();
    Happen(event);
  }
}

void Simulation::Happen(const Event& event) {
  const int64_t now_ns = clock_.NowNs();
  const bool is_open = now_ns < end_ns_;
  switch (event.kind) {
    case EventKind::kArrival: {
      if (!is_open) return;
      Arrive();
      const double gap_s = -std::log(1.0 - Uniform()) / arrivals_per_s_;
      At(now_ns + 1 + static_cast<int64_t>(gap_s * 1e9), EventKind::kArrival);
      return;
    }
    case EventKind::kCancel:
      if (const auto it = clients_.find(event.key); it != clients_.end()) {
        CancelRequest(it->second.get());
      }
      return;
    case EventKind::kFault:
      if (!is_open) return;
      Fault();
      At(now_ns + Draw(1, 600) * kSecond / (OneIn(4) ? 20 : 1), EventKind::kFault);
      return;
    case EventKind::kPhase:
      BeginPhase();
      if (is_open) At(now_ns + Draw(5, 300) * kSecond, EventKind::kPhase);
      return;
    case EventKind::kWatch:
      engine_->WatchBlocks(OneIn(3) ? 0 : ++block_watch_);
      if (is_open) At(now_ns + Draw(1, 300) * kSecond, EventKind::kWatch);
      return;
    case EventKind::kDrain:
      is_draining_ = true;
      engine_->Drain();
      end_ns_ = std::min(end_ns_, now_ns + 5 * kSecond);
      return;
  }
}

// Hours without a guest, busy times, and far more guests than there is room for.
void Simulation::BeginPhase() {
  constexpr double kTokensOfRequest = 30.0;
  const double sequences =
      std::min<double>(config_.max_num_seqs(), config_.max_num_batched_tokens());
  const double step_s =
      (static_cast<double>(step_ns_) + static_cast<double>(token_ns_) * sequences) * 1e-9;
  const double capacity = sequences / kTokensOfRequest / step_s;
  constexpr double kLoads[] = {0.001, 0.01, 0.2, 0.5, 0.8, 1.5};
  arrivals_per_s_ = std::max(0.005, capacity * kLoads[Draw(0, 5)]);
}

std::vector<TokenId> Simulation::NewPrompt() {
  const int64_t most = model_.max_model_len + (OneIn(20) ? 3 : 0);
  const int64_t size = OneIn(3) ? Draw(1, most) : Draw(1, std::max<int64_t>(1, most / 3));
  const int64_t num_shared = OneIn(2) ? size : Draw(0, size);
  const int64_t family = Draw(0, 4);
  std::vector<TokenId> prompt;
  for (int64_t i = 0; i < size; ++i) {
    // Bad tokens are rare, or nobody would be served.
    const auto shared = static_cast<TokenId>((family * 3 + i) % (kNumShared - 2));
    prompt.push_back(i < num_shared ? shared : static_cast<TokenId>(Draw(kNumShared, kVocab - 1)));
  }
  if (OneIn(30)) prompt.back() = static_cast<TokenId>(OneIn(2) ? kDeadlyToken : kPoisonousToken);
  return prompt;
}

Request Simulation::NewRequest() {
  Request request;
  request.key = RequestKey(next_key_++);
  request.prompt = NewPrompt();
  request.stop.max_tokens = static_cast<int32_t>(OneIn(10) ? 0 : Draw(1, 70));
  if (OneIn(12)) request.stop.max_tokens.reset();
  const auto any_token = [&] { return static_cast<TokenId>(Draw(0, kVocab - 1)); };
  if (OneIn(2)) request.stop.eos_token_ids.push_back(any_token());
  if (OneIn(4)) request.stop.stop_token_ids.push_back(any_token());
  request.stop.min_tokens = static_cast<int32_t>(OneIn(5) ? Draw(0, 8) : 0);
  request.stop.ignore_eos = OneIn(6);
  request.stop.include_stop = OneIn(4);
  request.want_text = tokenizer_ != nullptr && !OneIn(8);
  for (int64_t i = tokenizer_ != nullptr && OneIn(2) ? Draw(1, 3) : 0; i > 0; --i) {
    std::string stop;
    for (int64_t k = Draw(1, 4); k > 0; --k) stop += static_cast<char>('a' + Draw(0, 4));
    request.stop.stop_strings.push_back(stop);
  }
  request.n = static_cast<int32_t>(OneIn(5) ? Draw(2, 4) : 1);
  request.best_of = request.n + static_cast<int32_t>(OneIn(12) ? Draw(1, 2) : 0);
  if (OneIn(25)) {
    request.best_of = static_cast<int32_t>(Draw(1, 4));
    request.n = static_cast<int32_t>(Draw(1, request.best_of));
    request.sampling.beams = BeamParams{.width = request.best_of,
                                        .length_penalty = static_cast<float>(Draw(0, 2)),
                                        .early_stopping = OneIn(2)};
  }
  request.priority = static_cast<int32_t>(Draw(-1, 1));
  if (OneIn(3)) request.cache_salt = "other";
  request.sampling.seed = random_() % 1'000'000;
  if (OneIn(8)) request.sampling.num_logprobs = static_cast<int32_t>(Draw(0, 2));
  if (OneIn(12)) request.sampling.num_prompt_logprobs = static_cast<int32_t>(Draw(0, 2));
  if (OneIn(2)) request.sampling.max_draft_tokens = static_cast<int32_t>(Draw(1, 16));
  request.arrival_ns = clock_.NowNs();
  if (OneIn(12)) request.deadline_ns = clock_.NowNs() + Draw(0, 200) * step_ns_;
  return request;
}

void Simulation::Arrive() {
  const Request request = NewRequest();
  const bool is_beam = request.sampling.beams.has_value();
  const int64_t num_pool_tokens = int64_t{num_blocks_} * config_.block_size();
  std::vector<ReferenceOutput> expected;
  if (!is_beam) expected = MakeReferenceOutputs(model_, request);
  // A draw that the pool cuts short has another place among the best.
  const bool is_ranked = request.best_of > request.n;
  if (is_ranked && num_pool_tokens < model_.max_model_len) expected.clear();
  auto client = std::make_unique<SimulatedClient>(request, std::move(expected));
  client->excuses.num_pool_tokens = num_pool_tokens;
  client->num_steps_before = workers_->num_steps();
  client->num_restarts_before = workers_->num_restarts();
  for (const auto& [key, other] : clients_) {
    client->num_sequences_before += other->request().best_of;
    client->is_behind_beams |= other->request().sampling.beams.has_value();
  }
  const absl::Status status = engine_->Submit(request);
  if (status.ok()) {
    ++report_.num_requests;
    report_.num_beams += is_beam ? 1 : 0;
    hides_tokens_ |= is_beam || is_ranked;
    CutShort(client.get());
    clients_.emplace(request.key.value(), std::move(client));
    return;
  }
  ++report_.num_refused;
  const bool is_known = absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) ||
                        (absl::IsUnavailable(status) && is_draining_) ||
                        (absl::IsInternal(status) && condemned_.count(request.prompt) > 0);
  if (absl::IsResourceExhausted(status) && clients_.empty()) Violate("an empty queue is full");
  if (!is_known) Violate(absl::StrCat("refused: ", status.ToString()));
}

// Clients that go away, and those that read slowly.
void Simulation::CutShort(SimulatedClient* client) {
  if (OneIn(8)) {
    At(clock_.NowNs() + Draw(0, 150) * step_ns_, EventKind::kCancel, client->request().key.value());
  }
  if (OneIn(15)) client->read_tokens_per_s = Uniform() * 1e9 / static_cast<double>(step_ns_);
}

void Simulation::CancelRequest(SimulatedClient* client) {
  if (client->has_ended()) return;
  engine_->Cancel(client->request().key);
  client->excuses.is_cancelled = true;
  must_end_.insert(client->request().key.value());
}

void Simulation::Fault() {
  constexpr Cause kCauses[] = {Cause::kKilled, Cause::kStopped, Cause::kCrashed, Cause::kError};
  const int64_t kind = Draw(0, 9);
  // What may look like a row's fault: the engine cannot know better.
  bool blames = false;
  if (kind < 5) {
    const Cause cause = kCauses[OneIn(3) ? Draw(2, 3) : Draw(0, 1)];
    blames = cause == Cause::kCrashed || cause == Cause::kError;
    workers_->Lose(cause);
  } else if (kind == 5) {
    blames = true;
    workers_->Hang();
  } else if (kind == 6) {
    blames = true;
    workers_->SpoilNextResult();
  } else if (kind == 7) {
    workers_->Lose(Cause::kKilled);
    workers_->FailStarts(static_cast<int>(Draw(1, 4)));
  } else {
    workers_->SlowDown(Draw(2, 50), clock_.NowNs() + Draw(1, 20) * kSecond);
  }
  if (!blames) return;
  for (auto& [key, client] : clients_) client->excuses.may_be_blamed = true;
}

}  // namespace pagoda::engine::simulation
