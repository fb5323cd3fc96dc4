#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/ids.h"

namespace pagoda::engine {

// What an engine looks like between two rounds, for people. No tokens and no texts.
struct EngineState {
  struct Tenant {
    std::string name;
    double weight = 1.0;
    double virtual_tokens = 0.0;
    size_t num_waiting = 0;
    int32_t num_running = 0;
  };
  struct Sequence {
    RequestKey key;
    int32_t index = 0;
    std::string tenant;
    std::optional<uint32_t> slot;  // absent: it waits
    int32_t num_prompt_tokens = 0;
    int32_t num_known_tokens = 0;
    int32_t num_computed = 0;
    size_t num_blocks = 0;
    int32_t num_rows_in_flight = 0;
    int32_t num_preemptions = 0;
    int32_t priority = 0;
    int64_t age_ns = 0;
  };

  size_t num_steps_in_flight = 0;
  uint32_t num_blocks = 0;
  uint32_t num_used_blocks = 0;
  uint32_t num_cached_blocks = 0;
  uint32_t num_free_blocks = 0;
  std::vector<Tenant> tenants;      // by name
  std::vector<Sequence> sequences;  // in service order, those that run first
};

}  // namespace pagoda::engine
