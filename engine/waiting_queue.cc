#include "engine/waiting_queue.h"

#include <algorithm>
#include <optional>

#include "kernels/base/check.h"

namespace pagoda::engine {
namespace {

// The least counter of those that `counts`, but for `tenant`.
template <typename Queues, typename Counts>
std::optional<double> LeastOfOthers(const Queues& queues,
                                    const TenantQueue* tenant,
                                    Counts counts) {
  std::optional<double> least;
  for (const auto& entry : queues) {
    const TenantQueue& other = *entry.second;
    if (&other == tenant || !counts(other)) continue;
    least = std::min(least.value_or(other.virtual_tokens), other.virtual_tokens);
  }
  return least;
}

}  // namespace

TenantQueue* WaitingQueue::Find(const Tenant& tenant) {
  PAGODA_CHECK(tenant.weight > 0);
  std::unique_ptr<TenantQueue>& queue = tenants_[tenant.name];
  if (queue == nullptr) queue = std::make_unique<TenantQueue>();
  // The operator may have changed it since the last request.
  queue->cost_of_token = 1.0 / tenant.weight;
  return queue.get();
}

void WaitingQueue::Lift(TenantQueue* tenant) const {
  std::optional<double> least = LeastOfOthers(
      tenants_, tenant, [](const TenantQueue& other) { return !other.waiting.empty(); });
  if (!least.has_value()) {
    least = LeastOfOthers(
        tenants_, tenant, [](const TenantQueue& other) { return other.num_running > 0; });
  }
  if (least.has_value()) tenant->virtual_tokens = std::max(tenant->virtual_tokens, *least);
}

void WaitingQueue::Insert(Sequence* sequence) {
  if (sequence->tenant == nullptr) sequence->tenant = Find(sequence->request->request.tenant);
  TenantQueue* const tenant = sequence->tenant;
  if (tenant->waiting.empty()) {
    Lift(tenant);
    backlogged_.push_back(tenant);
  }
  // What it computed is lost, and what is on its way will be known when it runs again.
  sequence->num_waiting_tokens = sequence->num_known_tokens + sequence->num_samples_in_flight;
  tenant->waiting.insert(sequence);
  tenant->by_length.insert(sequence);
  ++size_;
}

void WaitingQueue::Erase(Sequence* sequence) {
  TenantQueue* const tenant = sequence->tenant;
  if (tenant->waiting.erase(sequence) == 0) return;
  tenant->by_length.erase(sequence);
  --size_;
  if (!tenant->waiting.empty()) return;
  backlogged_.erase(std::find(backlogged_.begin(), backlogged_.end(), tenant));
}

Sequence* WaitingQueue::Head() const {
  Sequence* head = nullptr;
  for (const TenantQueue* tenant : backlogged_) {
    if (head != nullptr && tenant->virtual_tokens > head->tenant->virtual_tokens) continue;
    const auto first = std::find_if(tenant->waiting.begin(),
                                    tenant->waiting.end(),
                                    [](const Sequence* sequence) { return !sequence->is_held; });
    if (first == tenant->waiting.end()) continue;
    if (head == nullptr || GoesBefore(**first, *head)) head = *first;
  }
  return head;
}

Sequence* WaitingQueue::Oldest() const {
  Sequence* oldest = nullptr;
  for (const TenantQueue* tenant : backlogged_) {
    Sequence* const first = *tenant->waiting.begin();
    if (oldest == nullptr || OrderLess()(first, oldest)) oldest = first;
  }
  return oldest;
}

void WaitingQueue::NotePassed(const Sequence& head, int64_t num_tokens) {
  num_tokens += NumPassedTokens(head);
  head.tenant->passed = head.order;
  head.tenant->num_passed_tokens = num_tokens;
}

int64_t WaitingQueue::NumPassedTokens(const Sequence& head) {
  const TenantQueue& tenant = *head.tenant;
  const bool is_it = !(tenant.passed < head.order) && !(head.order < tenant.passed);
  return is_it ? tenant.num_passed_tokens : 0;
}

void WaitingQueue::DescribeTenants(std::vector<EngineState::Tenant>* out) const {
  for (const auto& [name, queue] : tenants_) {
    out->push_back({.name = name,
                    .weight = 1.0 / queue->cost_of_token,
                    .virtual_tokens = queue->virtual_tokens,
                    .num_waiting = queue->waiting.size(),
                    .num_running = queue->num_running});
  }
  std::sort(out->begin(), out->end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

void WaitingQueue::FindCandidates(size_t most, std::vector<Sequence*>* out) {
  out->clear();
  cursors_.clear();
  Sequence* const head = Head();
  if (head != nullptr) out->push_back(head);
  const auto cost = [](const Sequence& sequence) {
    return sequence.num_waiting_tokens * sequence.tenant->cost_of_token;
  };
  for (const TenantQueue* tenant : backlogged_) {
    const bool has_head = head != nullptr && head->tenant == tenant;
    cursors_.push_back({.tenant = tenant,
                        .next = tenant->by_length.begin(),
                        .virtual_tokens = tenant->virtual_tokens + (has_head ? cost(*head) : 0.0)});
  }
  while (out->size() < most && !cursors_.empty()) {
    const auto cursor =
        std::min_element(cursors_.begin(), cursors_.end(), [](const Cursor& a, const Cursor& b) {
          if (a.virtual_tokens != b.virtual_tokens) return a.virtual_tokens < b.virtual_tokens;
          return (*a.next)->order < (*b.next)->order;
        });
    Sequence* const sequence = *cursor->next;
    if (sequence != head) {
      out->push_back(sequence);
      cursor->virtual_tokens += cost(*sequence);
    }
    if (++cursor->next == cursor->tenant->by_length.end()) cursors_.erase(cursor);
  }
}

}  // namespace pagoda::engine
