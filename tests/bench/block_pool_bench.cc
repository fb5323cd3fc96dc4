// Cost of taking a block from the pool and giving it back, plain and with a cached content to
// evict.
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include "engine/kv/block_hash.h"
#include "engine/kv/block_pool.h"

namespace pagoda::engine {
namespace {

constexpr double kFloorNs = 60.0;

void Report(benchmark::State& state, int64_t num_blocks) {
  state.SetItemsProcessed(num_blocks);
  // Seconds per block; printed by the library with its unit.
  state.counters["floor_ns"] = kFloorNs;
  state.counters["figure_s"] = benchmark::Counter(
      static_cast<double>(num_blocks), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["ratio"] =
      benchmark::Counter(static_cast<double>(num_blocks) * kFloorNs * 1e-9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// A table of `range(1)` blocks is filled and emptied, so that the queue's order is that of use.
void AllocateAndFree(benchmark::State& state) {
  BlockPool pool(static_cast<uint32_t>(state.range(0)), 16);
  std::vector<BlockId> table;
  int64_t num_blocks = 0;
  for (auto _ : state) {
    for (int64_t i = 0; i < state.range(1); ++i) table.push_back(pool.Allocate());
    while (!table.empty()) {
      pool.Release(table.back());
      table.pop_back();
    }
    num_blocks += state.range(1);
  }
  Report(state, num_blocks);
}
BENCHMARK(AllocateAndFree)->Args({1 << 15, 1})->Args({1 << 15, 64})->Args({1 << 20, 4096});

// The same with a content published for every block, so that every allocation evicts one.
void AllocatePublishAndFree(benchmark::State& state) {
  constexpr uint32_t kBlockSize = 16;
  BlockPool pool(static_cast<uint32_t>(state.range(0)), kBlockSize);
  const BlockHasher hasher("key");
  BlockHash parent = hasher.Root({});
  std::vector<TokenId> tokens(kBlockSize, 3);
  std::vector<BlockId> table;
  int64_t num_blocks = 0;
  for (auto _ : state) {
    for (int64_t i = 0; i < state.range(1); ++i) {
      table.push_back(pool.Allocate());
      tokens[0] = static_cast<TokenId>(num_blocks + i);
      const BlockHash hash = hasher.Chain(parent, tokens);
      pool.Publish(table.back(), {.hash = hash, .parent = parent, .tokens = tokens});
      parent = hash;
    }
    while (!table.empty()) {
      pool.Release(table.back());
      table.pop_back();
    }
    num_blocks += state.range(1);
  }
  Report(state, num_blocks);
}
BENCHMARK(AllocatePublishAndFree)->Args({1 << 15, 64})->Args({1 << 20, 4096});

}  // namespace
}  // namespace pagoda::engine

BENCHMARK_MAIN();
