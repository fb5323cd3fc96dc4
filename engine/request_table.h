#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "engine/ids.h"
#include "engine/metrics.h"
#include "engine/sequence.h"

namespace pagoda::engine {

// Owns every request from the intake to its last retired row, and knows whose deadline comes first.
// Engine thread only.
class RequestTable {
 public:
  // `metrics` outlives this.
  explicit RequestTable(EngineMetrics* metrics) : metrics_(metrics) {}

  // REQUIRES: no other request has the key.
  LiveRequest* Add(std::unique_ptr<LiveRequest> live);
  // Null: unknown, or it has had its last delta.
  LiveRequest* Find(RequestKey key) const;
  std::vector<LiveRequest*> All() const;

  // Gives a request away. REQUIRES: it has not had its last delta; no row in flight names it.
  std::unique_ptr<LiveRequest> Remove(LiveRequest* live);
  bool empty() const { return live_.empty(); }

  // INT64_MAX: none.
  int64_t next_deadline_ns() const;
  // A request whose deadline has passed, each once; null: none.
  LiveRequest* TakeExpired(int64_t now_ns);

  // The request has had its last delta; it lives on until no row in flight names it.
  void Complete(LiveRequest* live);
  // Deletes completed requests that no row in flight names.
  void ForgetRetired(int64_t now_ns);

 private:
  EngineMetrics* const metrics_;
  absl::flat_hash_map<RequestKey, std::unique_ptr<LiveRequest>> live_;
  absl::btree_set<std::pair<int64_t, RequestKey>> deadlines_;
  std::vector<std::unique_ptr<LiveRequest>> completed_;
};

}  // namespace pagoda::engine
