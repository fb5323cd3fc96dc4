#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/metrics.h"
#include "grpcpp/support/status_code_enum.h"

namespace pagoda::daemon {

// A histogram that any thread writes; a few writes per request, so contention does not matter.
class SharedHistogram {
 public:
  explicit SharedHistogram(std::vector<double> upper_bounds)
      : upper_bounds_(std::move(upper_bounds)), counts_(upper_bounds_.size() + 1) {}

  void Observe(double value) {
    size_t i = 0;
    while (i < upper_bounds_.size() && value > upper_bounds_[i]) ++i;
    counts_[i].fetch_add(1, std::memory_order_relaxed);
    double sum = sum_.load(std::memory_order_relaxed);
    while (!sum_.compare_exchange_weak(sum, sum + value, std::memory_order_relaxed)) {
    }
  }
  const std::vector<double>& upper_bounds() const { return upper_bounds_; }
  // Not cumulative; the last is above every bound.
  uint64_t count(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> upper_bounds_;
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<double> sum_{0.0};
};

// Why a call was turned away before the engine took it.
enum class RejectReason : uint8_t {
  kQueueFull,
  kLoading,
  kDraining,
  kTooLong,
  kInvalid,
  kWorkerLost,
  kAuth
};
inline constexpr size_t kNumRejectReasons = 7;
// grpc::StatusCode runs from OK (0) to UNAUTHENTICATED (16).
inline constexpr size_t kNumGrpcCodes = 17;

// What brought a call.
enum class Api : uint8_t { kGrpc, kVllmGrpc, kHttp };
inline constexpr size_t kNumApis = 3;

struct ApiMetrics {
  std::atomic<uint64_t> requests_received{0};
  // Every generation call once, however it ended.
  std::array<std::array<std::atomic<uint64_t>, kNumGrpcCodes>, engine::kNumOutcomes>
      requests_finished{};
  std::atomic<int64_t> open_calls{0};
  std::atomic<uint64_t> stream_messages{0};
  // Tokens that joined a message already waiting for its turn, and streams ended because nobody
  // read them.
  std::atomic<uint64_t> stream_coalesced_tokens{0};
  std::atomic<uint64_t> stream_stalls{0};

  void CountFinished(engine::Outcome outcome, grpc::StatusCode code) {
    requests_finished[static_cast<size_t>(outcome)][static_cast<size_t>(code)].fetch_add(
        1, std::memory_order_relaxed);
  }
};

// What the front end counts, beside EngineMetrics. Any thread writes, any reads.
struct ServerMetrics {
  std::array<ApiMetrics, kNumApis> apis;
  std::array<std::atomic<uint64_t>, kNumRejectReasons> requests_rejected{};
  std::atomic<int64_t> http_connections{0};
  // From arrival, before tokenisation, to the first token's message being built.
  SharedHistogram stream_first_token_seconds{engine::TimeToFirstTokenBuckets()};
  SharedHistogram unary_first_token_seconds{engine::TimeToFirstTokenBuckets()};
  // Parsing, checking and encoding, with the wait for a text thread.
  SharedHistogram tokenize_seconds{engine::RequestPhaseBuckets()};
  // Of a request's first sequence, when it ends: from its first step on, and the mean time of a
  // token after the first.
  SharedHistogram inference_seconds{engine::RequestPhaseBuckets()};
  SharedHistogram output_token_seconds{engine::InterTokenBuckets()};
  // What requests ask for: tokens that they may generate, and completions.
  SharedHistogram request_max_tokens{engine::TokenCountBuckets()};
  SharedHistogram request_completions{engine::TokenCountBuckets()};

  ApiMetrics& of(Api api) { return apis[static_cast<size_t>(api)]; }
  const ApiMetrics& of(Api api) const { return apis[static_cast<size_t>(api)]; }
  void CountRejected(RejectReason reason) {
    requests_rejected[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
};

}  // namespace pagoda::daemon
