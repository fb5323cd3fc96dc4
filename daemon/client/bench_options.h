#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/client/bench_prompts.h"
#include "daemon/client/connection.h"
#include "daemon/client/http_target.h"

namespace pagoda::daemon {

// When requests of an open loop leave.
enum class Arrival {
  kPoisson,  // exponential gaps
  kFixed,    // equal gaps
  kAtOnce    // none: all together
};

// What a request must keep to count as good: those that are present, in milliseconds.
struct LatencyLimits {
  std::optional<double> ttft_ms, tpot_ms, e2e_ms;
  bool any() const { return ttft_ms || tpot_ms || e2e_ms; }
};

// One load on a daemon.
struct BenchOptions {
  ConnectionFlags connection;
  // A server of OpenAI's API instead of the daemon's gRPC API.
  std::optional<HttpTarget> http;
  std::string model;
  int64_t num_requests = 100;
  int64_t num_warmup_requests = 4;
  // Closed loop: this many requests at once, a new one as soon as one ends.
  int64_t concurrency = 16;
  // Requests a second of an open loop, whatever has ended.
  std::optional<double> rate;
  Arrival arrival = Arrival::kPoisson;
  bool is_open_loop() const { return rate.has_value() || arrival == Arrival::kAtOnce; }
  int64_t input_tokens = 128;
  int64_t output_tokens = 128;
  // Lengths are uniform within this fraction of the ones above.
  double spread = 0.0;
  // Tokens at the front that all prompts share.
  int64_t shared_prefix_tokens = 0;
  // Every prompt, instead of random tokens.
  std::optional<std::string> text;
  // Prompts in turn, instead of random tokens, and where they say so how many tokens to generate.
  std::vector<BenchPrompt> prompts;
  LatencyLimits limits;
  std::optional<float> temperature;
  int64_t num_channels = 1;
  int64_t num_threads = 1;
  uint64_t seed = 0;
};

}  // namespace pagoda::daemon
