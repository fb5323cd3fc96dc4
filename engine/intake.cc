#include "engine/intake.h"

#include <algorithm>
#include <cmath>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "engine/errors.h"

namespace pagoda::engine {
namespace {

// A wait is an estimate: only a deadline that even a queue of twice the speed would miss is
// hopeless.
constexpr int64_t kHopelessFactor = 2;

int64_t PartOf(int64_t limit, double share) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(limit) * share));
}

}  // namespace

Intake::Intake(const IntakeLimits& limits)
    : limits_(limits), wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Intake::~Intake() { close(wake_fd_); }

Intake::Load Intake::LoadOf(const Request& request) {
  const int64_t num_sequences = std::max(request.n, request.best_of);
  return {.num_sequences = num_sequences,
          .num_tokens = num_sequences * static_cast<int64_t>(request.prompt.size())};
}

Intake::Arrival Intake::ArrivalOf(const Request& request, int64_t now_ns) {
  return {.tenant = &request.tenant, .now_ns = now_ns, .deadline_ns = request.deadline_ns};
}

absl::Status Intake::CheckRoom(const Load& load, const Load& of_tenant, double share) const {
  if (waiting_.num_sequences == 0) return absl::OkStatus();
  if (waiting_.num_sequences + load.num_sequences > limits_.max_waiting_requests) {
    return QueueFullOfRequestsError(waiting_.num_sequences, limits_.max_waiting_requests);
  }
  if (waiting_.num_tokens + load.num_tokens > limits_.max_waiting_tokens) {
    return QueueFullOfTokensError(waiting_.num_tokens, load.num_tokens, limits_.max_waiting_tokens);
  }
  if (of_tenant.num_sequences == 0) return absl::OkStatus();
  const int64_t max_requests = PartOf(limits_.max_waiting_requests, share);
  if (of_tenant.num_sequences + load.num_sequences > max_requests) {
    return TenantQueueFullOfRequestsError(of_tenant.num_sequences, max_requests);
  }
  const int64_t max_tokens = PartOf(limits_.max_waiting_tokens, share);
  if (of_tenant.num_tokens + load.num_tokens > max_tokens) {
    return TenantQueueFullOfTokensError(of_tenant.num_tokens, load.num_tokens, max_tokens);
  }
  return absl::OkStatus();
}

std::optional<int64_t> Intake::EstimateWaitNs(const Load& of_tenant, double share) const {
  // Its own go at its share of the rate or faster; and all that wait go before it at worst.
  const double num_ahead = std::min(static_cast<double>(of_tenant.num_sequences) / share,
                                    static_cast<double>(waiting_.num_sequences));
  return rate_.TimeOf(num_ahead);
}

absl::Status Intake::CheckDeadline(const Load& of_tenant,
                                   double share,
                                   const Arrival& arrival) const {
  if (!arrival.deadline_ns.has_value() || waiting_.num_sequences == 0) return absl::OkStatus();
  const std::optional<int64_t> wait_ns = EstimateWaitNs(of_tenant, share);
  const int64_t left_ns = *arrival.deadline_ns - arrival.now_ns;
  if (!wait_ns.has_value() || *wait_ns / kHopelessFactor <= left_ns) return absl::OkStatus();
  return QueueTooSlowError(*wait_ns, left_ns);
}

absl::Status Intake::Reserve(const Load& load, const Arrival& arrival) {
  const Tenant nobody;
  const Tenant& tenant = arrival.tenant == nullptr ? nobody : *arrival.tenant;
  MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  const auto found = waiting_by_tenant_.find(tenant.name);
  const Load of_tenant = found == waiting_by_tenant_.end() ? Load() : found->second;
  absl::Status status = CheckRoom(load, of_tenant, tenant.queue_share);
  if (status.ok()) status = CheckDeadline(of_tenant, tenant.queue_share, arrival);
  if (!status.ok()) {
    const std::optional<int64_t> wait_ns = EstimateWaitNs(of_tenant, tenant.queue_share);
    if (wait_ns.has_value()) SetRetryAfter(*wait_ns, &status);
    return status;
  }
  Add(load, arrival);
  return absl::OkStatus();
}

void Intake::Add(const Load& load, const Arrival& arrival) {
  if (waiting_.num_sequences == 0) rate_.Begin(arrival.now_ns);
  waiting_.num_sequences += load.num_sequences;
  waiting_.num_tokens += load.num_tokens;
  Load& its = waiting_by_tenant_[arrival.tenant == nullptr ? std::string() : arrival.tenant->name];
  its.num_sequences += load.num_sequences;
  its.num_tokens += load.num_tokens;
}

void Intake::GiveBack(const Load& load, const Tenant& tenant) {
  waiting_.num_sequences -= load.num_sequences;
  waiting_.num_tokens -= load.num_tokens;
  const auto its = waiting_by_tenant_.find(tenant.name);
  its->second.num_sequences -= load.num_sequences;
  its->second.num_tokens -= load.num_tokens;
  if (its->second.num_sequences == 0) waiting_by_tenant_.erase(its);
  if (waiting_.num_sequences == 0) rate_.End();
}

absl::Status Intake::Push(std::unique_ptr<LiveRequest>* live) {
  {
    MutexLock lock(&mutex_);
    if (!closed_.ok()) {
      GiveBack(LoadOf((*live)->request), (*live)->request.tenant);
      return closed_;
    }
    batch_.requests.push_back(std::move(*live));
    if (batch_.requests.size() + batch_.cancellations.size() > 1) return absl::OkStatus();
  }
  // The engine thread sleeps at most while the batch is empty.
  Wake();
  return absl::OkStatus();
}

bool Intake::PushAdopted(std::unique_ptr<LiveRequest>* live, int64_t now_ns) {
  {
    MutexLock lock(&mutex_);
    if (has_ended_) return false;
    // One that has run waits for nothing that the bounds are about.
    const Request& request = (*live)->request;
    if ((*live)->scheduled_ns == 0) Add(LoadOf(request), ArrivalOf(request, now_ns));
    batch_.requests.push_back(std::move(*live));
  }
  Wake();
  return true;
}

void Intake::Cancel(RequestKey key, int64_t now_ns) {
  {
    MutexLock lock(&mutex_);
    batch_.cancellations.push_back({.key = key, .requested_ns = now_ns});
  }
  Wake();
}

void Intake::Close(absl::Status why) {
  {
    MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = std::move(why);
  }
  Wake();
}

void Intake::End(absl::Status why) {
  Close(std::move(why));
  MutexLock lock(&mutex_);
  has_ended_ = true;
}

void Intake::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable.
  [[maybe_unused]] const ssize_t num_written = write(wake_fd_, &one, sizeof(one));
}

void Intake::Take(Batch* batch) {
  uint64_t count = 0;
  // Before the swap: what comes after it wakes again.
  [[maybe_unused]] const ssize_t num_read = read(wake_fd_, &count, sizeof(count));
  MutexLock lock(&mutex_);
  std::swap(batch_, *batch);
}

void Intake::Leave(const Load& load, const Arrival& arrival) {
  const Tenant nobody;
  MutexLock lock(&mutex_);
  rate_.NoteLeft(load.num_sequences, arrival.now_ns);
  GiveBack(load, arrival.tenant == nullptr ? nobody : *arrival.tenant);
}

void Intake::Return(const Load& load, const Arrival& arrival) {
  MutexLock lock(&mutex_);
  Add(load, arrival);
}

int64_t Intake::num_waiting() const {
  MutexLock lock(&mutex_);
  return waiting_.num_sequences;
}

}  // namespace pagoda::engine
