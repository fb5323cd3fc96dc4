#include "daemon/client/bench_plan.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace pagoda::daemon {
namespace {

// Of another stream of random numbers for each purpose.
enum class Purpose : uint64_t {
  kDepartures = 1,
  kPrefix = 2,
  kLengths = 3,
  kPrompt = 4,
  kOffset = 5
};

std::mt19937_64 RandomFor(const BenchOptions& options, Purpose purpose, int64_t index = 0) {
  std::seed_seq sequence = {
      options.seed, static_cast<uint64_t>(purpose), static_cast<uint64_t>(index)};
  return std::mt19937_64(sequence);
}

int64_t Spread(int64_t length, double spread, std::mt19937_64& random) {
  const double factor = 1.0 + spread * (2.0 * std::generate_canonical<double, 53>(random) - 1.0);
  return std::max<int64_t>(1, std::llround(static_cast<double>(length) * factor));
}

// Tokens that spell index + a random offset: eight digits in a base of at least two. Different for
// all indices of a run of any sensible length.
constexpr int64_t kMaxIndexTokens = 8;

void FillPrompt(const BenchOptions& options,
                const IdRange& ids,
                int64_t index,
                int64_t length,
                v1::TokenIds* prompt) {
  const uint64_t base = ids.end - ids.begin;
  auto prefix_random = RandomFor(options, Purpose::kPrefix);
  for (int64_t i = 0; i < options.shared_prefix_tokens; ++i) {
    prompt->add_ids(ids.begin + static_cast<uint32_t>(prefix_random() % base));
  }
  auto offset_random = RandomFor(options, Purpose::kOffset);
  uint64_t label = offset_random() + static_cast<uint64_t>(index);
  auto random = RandomFor(options, Purpose::kPrompt, index);
  for (int64_t i = 0; i < length; ++i) {
    const uint64_t value = i < kMaxIndexTokens ? label : random();
    label /= base;
    prompt->add_ids(ids.begin + static_cast<uint32_t>(value % base));
  }
}

}  // namespace

std::vector<int64_t> PlanDepartures(const BenchOptions& options) {
  if (options.arrival == Arrival::kAtOnce) {
    return std::vector<int64_t>(static_cast<size_t>(options.num_requests), 0);
  }
  auto random = RandomFor(options, Purpose::kDepartures);
  const double mean_gap_ns = 1e9 / *options.rate;
  std::vector<int64_t> departures;
  double time_ns = 0;
  for (int64_t i = 0; i < options.num_requests; ++i) {
    departures.push_back(std::llround(time_ns));
    const double uniform = std::generate_canonical<double, 53>(random);
    time_ns +=
        options.arrival == Arrival::kPoisson ? -std::log1p(-uniform) * mean_gap_ns : mean_gap_ns;
  }
  return departures;
}

IdRange PromptIds(uint32_t vocab_size) { return {vocab_size / 16, vocab_size - vocab_size / 4}; }

v1::StreamGenerateRequest PlanRequest(const BenchOptions& options,
                                      const IdRange& ids,
                                      int64_t index) {
  auto random = RandomFor(options, Purpose::kLengths, index);
  const int64_t input_tokens = Spread(options.input_tokens, options.spread, random);
  int64_t output_tokens = Spread(options.output_tokens, options.spread, random);
  v1::StreamGenerateRequest request;
  request.set_model(options.model);
  if (!options.prompts.empty()) {
    const BenchPrompt& prompt =
        options.prompts[static_cast<size_t>(index) % options.prompts.size()];
    request.mutable_prompt()->set_text(prompt.text);
    if (prompt.output_tokens > 0) output_tokens = prompt.output_tokens;
  } else if (options.text) {
    request.mutable_prompt()->set_text(*options.text);
  } else {
    const int64_t own_tokens = std::max<int64_t>(1, input_tokens - options.shared_prefix_tokens);
    FillPrompt(options, ids, index, own_tokens, request.mutable_prompt()->mutable_token_ids());
  }
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(output_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  if (options.temperature) request.mutable_sampling()->set_temperature(*options.temperature);
  request.mutable_sampling()->set_seed(options.seed + static_cast<uint64_t>(index));
  return request;
}

}  // namespace pagoda::daemon
