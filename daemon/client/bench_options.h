#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/client/connection.h"

namespace pagoda::daemon {

// One load on a daemon.
struct BenchOptions {
  ConnectionFlags connection;
  std::string model;
  int64_t num_requests = 100;
  int64_t num_warmup_requests = 4;
  // Closed loop: this many requests at once, a new one as soon as one ends.
  int64_t concurrency = 16;
  // Open loop, when present: requests a second, whatever has ended.
  std::optional<double> rate;
  bool poisson = true;  // of an open loop: exponential gaps instead of equal ones
  int64_t input_tokens = 128;
  int64_t output_tokens = 128;
  // Lengths are uniform within this fraction of the ones above.
  double spread = 0.0;
  // Tokens at the front that all prompts share.
  int64_t shared_prefix_tokens = 0;
  // Every prompt, instead of random tokens.
  std::optional<std::string> text;
  std::optional<float> temperature;
  int64_t num_channels = 1;
  int64_t num_threads = 1;
  uint64_t seed = 0;
};

}  // namespace pagoda::daemon
