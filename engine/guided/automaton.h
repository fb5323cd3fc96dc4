#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::engine::guided {

// A compiled grammar: rules without empty edges, each of which reads at least one byte and is
// deterministic as far as bytes and calls are apart. Every state can reach the end of its rule.
// Plain data; the same bytes in every process. Immutable.
struct Automaton {
  struct ByteEdge {
    uint8_t low = 0, high = 0;
    uint16_t unused = 0;
    int32_t to = 0;
  };
  // `min` to `max` (-1: no bound) times the rule, then on from `to`.
  struct CallEdge {
    int32_t rule = 0;
    int32_t min = 1, max = 1;
    int32_t to = 0;
  };
  struct State {
    int32_t byte_begin = 0, byte_end = 0;  // in byte_edges
    int32_t call_begin = 0, call_end = 0;  // in call_edges
    int32_t accepts = 0;                   // 1: the rule may end here
  };

  std::vector<State> states;
  std::vector<ByteEdge> byte_edges;
  std::vector<CallEdge> call_edges;
  std::vector<int32_t> rule_starts;  // by rule; never accepting
  int32_t root = 0;
  int32_t accepts_empty = 0;  // 1: the empty text too

  // Bytes that no edge tells apart have one class.
  struct ByteClasses {
    std::array<uint8_t, 256> of{};
    int32_t count = 0;
  };
  ByteClasses Classes() const;

  std::string Serialize() const;
  // INVALID_ARGUMENT where the bytes are none that Serialize gave.
  static absl::StatusOr<Automaton> Parse(absl::string_view bytes);
};

}  // namespace pagoda::engine::guided
