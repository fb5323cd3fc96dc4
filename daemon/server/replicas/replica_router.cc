#include "daemon/server/replicas/replica_router.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "absl/status/status.h"

namespace pagoda::daemon {
namespace {

int64_t NumSequencesOf(const engine::Request& request) {
  return std::max(request.n, request.best_of);
}

// Who shares cached blocks. As long as nobody is authenticated, that is what a client says.
absl::string_view TenantOf(const engine::Request& request) { return request.cache_salt; }

}  // namespace

class ReplicaRouter::Sink final : public engine::OutputSink {
 public:
  explicit Sink(ReplicaRouter* router) : router_(router) {}
  void Deliver(std::vector<engine::OutputDelta> deltas) override {
    // Before the client can know of an end.
    router_->NoteOutput(deltas);
    router_->options_.sink->Deliver(std::move(deltas));
  }

 private:
  ReplicaRouter* const router_;
};

class ReplicaRouter::Peers final : public engine::EnginePeers {
 public:
  Peers(ReplicaRouter* router, size_t replica) : router_(router), replica_(replica) {}
  void NoteLoss() override { router_->NoteLoss(replica_); }
  bool CanTakeOver() const override { return router_->CanTakeOver(replica_); }
  void TakeOver(std::vector<std::unique_ptr<engine::LiveRequest>>* requests) override {
    router_->TakeOver(replica_, requests);
  }
  void ForwardCancel(engine::RequestKey key) override { router_->ForwardCancel(replica_, key); }

 private:
  ReplicaRouter* const router_;
  const size_t replica_;
};

struct ReplicaRouter::Replica {
  Replica(ReplicaRouter* router, size_t index, size_t max_cached_blocks)
      : sink(router), peers(router, index), prefixes(max_cached_blocks) {}

  Sink sink;
  Peers peers;
  ReplicaPort* port = nullptr;
  // Guarded by the router's mutex.
  int64_t num_sequences = 0;
  absl::flat_hash_map<std::string, int64_t> num_tenant_sequences;
  PrefixRecord prefixes;
  // Written under the mutex, read by scrapes.
  std::array<std::atomic<uint64_t>, kNumReasons> num_routed{};
};

ReplicaRouter::ReplicaRouter(const Options& options) : options_(options) {
  for (size_t i = 0; i < options.num_replicas; ++i)
    replicas_.push_back(std::make_unique<Replica>(this, i, options.max_cached_blocks));
}

ReplicaRouter::~ReplicaRouter() = default;

void ReplicaRouter::SetPort(size_t replica, ReplicaPort* port) { replicas_[replica]->port = port; }

engine::OutputSink* ReplicaRouter::sink(size_t replica) { return &replicas_[replica]->sink; }

engine::EnginePeers* ReplicaRouter::peers(size_t replica) { return &replicas_[replica]->peers; }

uint64_t ReplicaRouter::num_routed(size_t replica, Reason reason) const {
  return replicas_[replica]->num_routed[static_cast<size_t>(reason)].load(
      std::memory_order_relaxed);
}

// ---- Any thread

std::vector<engine::BlockHash> ReplicaRouter::HashesOf(const engine::Request& request) const {
  std::vector<engine::BlockHash> hashes;
  if (options_.max_cached_blocks == 0) return hashes;
  const absl::Span<const engine::TokenId> prompt = request.prompt;
  engine::BlockHash parent = options_.group->hasher.Root({.salt = request.cache_salt});
  for (size_t begin = 0; begin + options_.block_tokens <= prompt.size();
       begin += options_.block_tokens) {
    parent = options_.group->hasher.Chain(parent, prompt.subspan(begin, options_.block_tokens));
    hashes.push_back(parent);
  }
  return hashes;
}

absl::Status ReplicaRouter::Submit(engine::Request request) {
  const std::vector<engine::BlockHash> hashes = HashesOf(request);
  const std::string tenant(TenantOf(request));
  const Wanted wanted = {.key = request.key,
                         .num_sequences = NumSequencesOf(request),
                         .tenant = tenant,
                         .prompt = hashes};
  Tried tried(replicas_.size(), false);
  absl::Status first_refusal;
  while (const absl::optional<size_t> replica = FindPlace(wanted, tried)) {
    absl::Status status = replicas_[*replica]->port->TrySubmit(&request);
    if (status.ok()) return status;
    {
      MutexLock lock(&mutex_);
      Leave(wanted.key);
    }
    // Full, or at its end; anything else is about the request.
    if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status)) return status;
    if (first_refusal.ok()) first_refusal = std::move(status);
    tried[*replica] = true;
  }
  return first_refusal;
}

absl::optional<size_t> ReplicaRouter::FindPlace(const Wanted& wanted, const Tried& tried) {
  MutexLock lock(&mutex_);
  absl::optional<size_t> replica =
      Choose(wanted, [&](size_t i) { return !tried[i] && replicas_[i]->port->has_workers(); });
  // Those whose workers are being replaced have a queue all the same.
  if (!replica.has_value()) replica = Choose(wanted, [&](size_t i) { return !tried[i]; });
  if (replica.has_value()) Enter(wanted, *replica, /*is_taken_over=*/false);
  return replica;
}

template <typename MayTake>
absl::optional<size_t> ReplicaRouter::Choose(const Wanted& wanted, MayTake may_take) const {
  absl::InlinedVector<ReplicaView, 8> views;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = *replicas_[i];
    ReplicaView view = {.may_take = may_take(i),
                        .num_sequences = replica.num_sequences,
                        .num_prompt_blocks_cached = replica.prefixes.NumHeld(wanted.prompt),
                        .num_blocks_cached = replica.prefixes.size()};
    const auto tenant = replica.num_tenant_sequences.find(wanted.tenant);
    if (tenant != replica.num_tenant_sequences.end()) view.num_tenant_sequences = tenant->second;
    views.push_back(view);
  }
  return ChooseReplica(views);
}

void ReplicaRouter::Enter(const Wanted& wanted, size_t index, bool is_taken_over) {
  Replica& replica = *replicas_[index];
  Reason reason = replica.prefixes.NumHeld(wanted.prompt) > 0 ? Reason::kPrefix : Reason::kLoad;
  if (is_taken_over) reason = Reason::kTakenOver;
  replica.num_routed[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  replica.prefixes.Note(wanted.prompt);
  replica.num_sequences += wanted.num_sequences;
  if (!wanted.tenant.empty()) replica.num_tenant_sequences[wanted.tenant] += wanted.num_sequences;
  places_[wanted.key] = {.replica = index,
                         .num_sequences = wanted.num_sequences,
                         .tenant = std::string(wanted.tenant)};
}

void ReplicaRouter::Leave(engine::RequestKey key) {
  const auto found = places_.find(key);
  if (found == places_.end()) return;
  const Place& place = found->second;
  Replica& replica = *replicas_[place.replica];
  replica.num_sequences -= place.num_sequences;
  if (!place.tenant.empty()) {
    const auto tenant = replica.num_tenant_sequences.find(place.tenant);
    tenant->second -= place.num_sequences;
    if (tenant->second == 0) replica.num_tenant_sequences.erase(tenant);
  }
  places_.erase(found);
}

void ReplicaRouter::Cancel(engine::RequestKey key) {
  MutexLock lock(&mutex_);
  const auto found = places_.find(key);
  if (found != places_.end()) replicas_[found->second.replica]->port->Cancel(key);
}

// ---- Engine threads

void ReplicaRouter::NoteOutput(absl::Span<const engine::OutputDelta> deltas) {
  const auto is_last = [](const engine::OutputDelta& delta) { return delta.last; };
  if (std::none_of(deltas.begin(), deltas.end(), is_last)) return;
  MutexLock lock(&mutex_);
  for (const engine::OutputDelta& delta : deltas) {
    if (delta.last) Leave(delta.key);
  }
}

void ReplicaRouter::NoteLoss(size_t replica) {
  MutexLock lock(&mutex_);
  replicas_[replica]->prefixes.Clear();
}

bool ReplicaRouter::CanTakeOver(size_t replica) const {
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (i != replica && replicas_[i]->port->has_workers()) return true;
  }
  return false;
}

void ReplicaRouter::TakeOver(size_t replica,
                             std::vector<std::unique_ptr<engine::LiveRequest>>* requests) {
  MutexLock lock(&mutex_);
  std::vector<std::unique_ptr<engine::LiveRequest>> left;
  // In order, so that the oldest choose first.
  for (std::unique_ptr<engine::LiveRequest>& request : *requests) {
    if (!GiveToAnother(replica, &request)) left.push_back(std::move(request));
  }
  requests->swap(left);
}

bool ReplicaRouter::GiveToAnother(size_t replica, std::unique_ptr<engine::LiveRequest>* request) {
  const engine::Request& own = (*request)->request;
  // Copies: after Adopt it belongs to another thread.
  const std::vector<engine::BlockHash> prompt = (*request)->prompt_hashes;
  const std::string tenant(TenantOf(own));
  const Wanted wanted = {
      .key = own.key, .num_sequences = NumSequencesOf(own), .tenant = tenant, .prompt = prompt};
  Tried tried(replicas_.size(), false);
  tried[replica] = true;
  while (const absl::optional<size_t> other = Choose(
             wanted, [&](size_t i) { return !tried[i] && replicas_[i]->port->has_workers(); })) {
    if (replicas_[*other]->port->Adopt(request)) {
      Leave(wanted.key);
      Enter(wanted, *other, /*is_taken_over=*/true);
      return true;
    }
    tried[*other] = true;
  }
  return false;
}

void ReplicaRouter::ForwardCancel(size_t replica, engine::RequestKey key) {
  MutexLock lock(&mutex_);
  const auto found = places_.find(key);
  // One that is on its way to this replica is not there yet: who submits it cancels it afterwards.
  if (found == places_.end() || found->second.replica == replica) return;
  replicas_[found->second.replica]->port->Cancel(key);
}

}  // namespace pagoda::daemon
