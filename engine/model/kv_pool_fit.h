#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace pagoda::engine {

// What a device said about its memory when everything but the KV pool had been allocated and the
// largest step had run.
struct MeasuredMemory {
  uint64_t total_bytes = 0;
  // Before the model was loaded, and now.
  uint64_t free_at_first_bytes = 0;
  uint64_t free_bytes = 0;
  // One recorded step of the largest size, and how many steps may be recorded.
  uint64_t graph_bytes = 0;
  int num_graphs = 0;
  // Share of the whole memory that this process and those it shares with may take in all; 1 where
  // the pool's size was asked for.
  double utilization = 1.0;
  // Ranks on the device, which have all taken the same and are to have pools of the same size.
  int num_sharing = 1;
  // Left, so that as large a pool fits at a later start, of which measurements differ a little.
  uint64_t slack_bytes = 0;
};

// Stays free: recorded steps to come, and kernels that are loaded at their first use.
uint64_t KeptFreeBytes(const MeasuredMemory& memory);

// The largest pool that fits; 0 if none does.
uint64_t KvPoolBytesThatFit(const MeasuredMemory& memory);

// RESOURCE_EXHAUSTED, saying what there is and which flags help.
absl::Status NoKvBlockFits(uint64_t block_bytes, const MeasuredMemory& memory);

}  // namespace pagoda::engine
