#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace pagoda::daemon {

// A replica, seen from a request that has to go somewhere.
struct ReplicaView {
  bool may_take = true;
  int64_t num_sequences = 0;            // that it has and that have not ended
  int64_t num_tenant_sequences = 0;     // those of the request's tenant
  size_t num_prompt_blocks_cached = 0;  // of the request's prompt, from the first
  size_t num_blocks_cached = 0;         // of any prompt
};

// Sequences that a replica may have more than the least busy one and still be given a request for
// the sake of its cache: the greater of a fixed number and a share of what the least busy one has.
inline constexpr int64_t kMaxBusier = 4;
inline constexpr int64_t kMaxBusierDivisor = 2;

// Where a request goes; absent: nowhere. The rule:
//
// 1. A replica that is much busier than the least busy one (above) takes no part, whatever it
//    holds.
// 2. Of the others the one with the least cost: how many sequences busier it is than the least busy
//    one, less the blocks of the prompt that it holds. So a cached block is worth one sequence more
//    beside the request.
// 3. Where costs are equal: the least busy; then the one with the fewest sequences of the tenant,
//    so that a tenant's burst is spread; then the one that caches least, so that unlike prompts
//    fill all caches; then the first.
//
// 1 is the balance bound of SGLang's cache-aware router (balance_abs_threshold and
// balance_rel_threshold), 2 the cost of NVIDIA Dynamo's KV router (blocks to prefill plus blocks
// that decode) with sequences for its second term. Pure.
absl::optional<size_t> ChooseReplica(absl::Span<const ReplicaView> replicas);

}  // namespace pagoda::daemon
