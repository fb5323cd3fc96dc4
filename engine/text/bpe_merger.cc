#include "engine/text/bpe_merger.h"

#include <algorithm>
#include <array>
#include <limits>

namespace pagoda::engine {
namespace {

constexpr int32_t kNone = -1;
// Up to here looking through all pairs for the lowest rank beats a heap.
constexpr size_t kShortWord = 48;
constexpr uint32_t kNoMerge = std::numeric_limits<uint32_t>::max();
// Words beyond this many symbols are rare; their memory is not kept.
constexpr size_t kMaxKeptSymbols = 1 << 16;

}  // namespace

void BpeMerger::Run(const MergeTable& merges, std::vector<TokenId>* ids) {
  if (ids->size() < 2) return;
  if (ids->size() <= kShortWord) {
    RunShort(merges, ids);
  } else {
    RunLong(merges, ids);
  }
}

void BpeMerger::Trim() {
  if (symbols_.capacity() > kMaxKeptSymbols) symbols_ = {};
  if (heap_.capacity() > 2 * kMaxKeptSymbols) heap_ = {};
}

void BpeMerger::RunShort(const MergeTable& merges, std::vector<TokenId>* ids) {
  // What ids[i] and ids[i + 1] become; the last is always none. Ranks lie apart from the ids, so
  // that looking through them reads half as much.
  std::array<uint32_t, kShortWord> ranks;
  std::array<TokenId, kShortWord> merged;
  ranks[0] = kNoMerge;
  TokenId* const id = ids->data();
  size_t size = ids->size();
  const auto lookup = [&](size_t i) {
    const Merge* merge = i + 1 < size ? merges.Find(id[i], id[i + 1]) : nullptr;
    ranks[i] = merge != nullptr ? merge->rank : kNoMerge;
    if (merge != nullptr) merged[i] = merge->id;
  };
  for (size_t i = 0; i < size; ++i) lookup(i);
  for (;;) {
    size_t best = 0;
    uint32_t best_rank = ranks[0];
    for (size_t i = 1; i < size; ++i) {
      const bool is_better = ranks[i] < best_rank;
      best_rank = is_better ? ranks[i] : best_rank;
      best = is_better ? i : best;
    }
    if (best_rank == kNoMerge) break;
    id[best] = merged[best];
    --size;
    std::copy(id + best + 2, id + size + 1, id + best + 1);
    std::copy(ranks.data() + best + 2, ranks.data() + size + 1, ranks.data() + best + 1);
    std::copy(merged.data() + best + 2, merged.data() + size + 1, merged.data() + best + 1);
    lookup(best);
    if (best > 0) lookup(best - 1);
  }
  ids->resize(size);
}

void BpeMerger::PushCandidate(const MergeTable& merges, int32_t left) {
  const int32_t right = symbols_[left].next;
  if (right == kNone) return;
  const Merge* merge = merges.Find(symbols_[left].id, symbols_[right].id);
  if (merge != nullptr) heap_.push_back({merge->rank, left, merge->id});
}

void BpeMerger::RunLong(const MergeTable& merges, std::vector<TokenId>* ids) {
  const auto is_later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const int32_t size = static_cast<int32_t>(ids->size());
  symbols_.resize(ids->size());
  heap_.clear();
  for (int32_t i = 0; i < size; ++i) symbols_[i] = {(*ids)[i], i - 1, i + 1 < size ? i + 1 : kNone};
  for (int32_t i = 0; i < size; ++i) PushCandidate(merges, i);
  std::make_heap(heap_.begin(), heap_.end(), is_later);

  const auto push = [&](int32_t left) {
    const size_t size_before = heap_.size();
    PushCandidate(merges, left);
    if (heap_.size() > size_before) std::push_heap(heap_.begin(), heap_.end(), is_later);
  };
  while (!heap_.empty()) {
    const Candidate best = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), is_later);
    heap_.pop_back();
    Symbol& left = symbols_[best.left];
    if (left.id == kNone || left.next == kNone) continue;
    Symbol& right = symbols_[left.next];
    const Merge* merge = merges.Find(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;
    left.id = best.id;
    left.next = right.next;
    right.id = kNone;  // out of the list
    if (left.next != kNone) symbols_[left.next].previous = best.left;
    push(best.left);
    if (left.previous != kNone) push(left.previous);
  }

  ids->clear();
  for (int32_t i = 0; i != kNone; i = symbols_[i].next) ids->push_back(symbols_[i].id);
}

}  // namespace pagoda::engine
