#include "engine/guided/automaton.h"

#include <bitset>
#include <cstring>
#include <type_traits>

namespace pagoda::engine::guided {
namespace {

constexpr uint32_t kMagic = 0x31474150;  // "PAG1"

template <typename T>
void Put(const std::vector<T>& values, std::string* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  const uint64_t count = values.size();
  out->append(reinterpret_cast<const char*>(&count), sizeof(count));
  out->append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}

template <typename T>
bool Take(absl::string_view* bytes, std::vector<T>* values) {
  uint64_t count = 0;
  if (bytes->size() < sizeof(count)) return false;
  std::memcpy(&count, bytes->data(), sizeof(count));
  bytes->remove_prefix(sizeof(count));
  if (count > bytes->size() / sizeof(T)) return false;
  values->resize(count);
  if (count > 0) std::memcpy(values->data(), bytes->data(), count * sizeof(T));
  bytes->remove_prefix(count * sizeof(T));
  return true;
}

template <typename T>
bool Take(absl::string_view* bytes, T* value) {
  if (bytes->size() < sizeof(T)) return false;
  std::memcpy(value, bytes->data(), sizeof(T));
  bytes->remove_prefix(sizeof(T));
  return true;
}

bool IsSound(const Automaton& automaton) {
  const auto is_state = [&](int32_t i) {
    return i >= 0 && static_cast<size_t>(i) < automaton.states.size();
  };
  const auto is_range = [](int32_t begin, int32_t end, size_t size) {
    return begin >= 0 && begin <= end && static_cast<size_t>(end) <= size;
  };
  const auto is_rule = [&](int32_t i) {
    return i >= 0 && static_cast<size_t>(i) < automaton.rule_starts.size();
  };
  for (const Automaton::State& state : automaton.states) {
    if (!is_range(state.byte_begin, state.byte_end, automaton.byte_edges.size())) return false;
    if (!is_range(state.call_begin, state.call_end, automaton.call_edges.size())) return false;
  }
  for (const Automaton::ByteEdge& edge : automaton.byte_edges) {
    if (edge.low > edge.high || !is_state(edge.to)) return false;
  }
  for (const Automaton::CallEdge& edge : automaton.call_edges) {
    const bool counts = edge.min >= 1 && (edge.max == -1 || edge.max >= edge.min);
    if (!counts || !is_rule(edge.rule) || !is_state(edge.to)) return false;
  }
  for (const int32_t start : automaton.rule_starts) {
    if (!is_state(start)) return false;
  }
  return is_rule(automaton.root);
}

}  // namespace

Automaton::ByteClasses Automaton::Classes() const {
  std::bitset<257> begins;
  for (const ByteEdge& edge : byte_edges) {
    begins.set(edge.low);
    begins.set(size_t{edge.high} + 1);
  }
  ByteClasses classes;
  for (size_t byte = 1; byte < 256; ++byte) {
    if (begins[byte]) ++classes.count;
    classes.of[byte] = static_cast<uint8_t>(classes.count);
  }
  ++classes.count;
  return classes;
}

std::string Automaton::Serialize() const {
  std::string out(reinterpret_cast<const char*>(&kMagic), sizeof(kMagic));
  Put(states, &out);
  Put(byte_edges, &out);
  Put(call_edges, &out);
  Put(rule_starts, &out);
  out.append(reinterpret_cast<const char*>(&root), sizeof(root));
  out.append(reinterpret_cast<const char*>(&accepts_empty), sizeof(accepts_empty));
  return out;
}

absl::StatusOr<Automaton> Automaton::Parse(absl::string_view bytes) {
  Automaton automaton;
  uint32_t magic = 0;
  const bool is_whole = Take(&bytes, &magic) && magic == kMagic &&
                        Take(&bytes, &automaton.states) && Take(&bytes, &automaton.byte_edges) &&
                        Take(&bytes, &automaton.call_edges) &&
                        Take(&bytes, &automaton.rule_starts) && Take(&bytes, &automaton.root) &&
                        Take(&bytes, &automaton.accepts_empty) && bytes.empty();
  if (!is_whole || !IsSound(automaton)) {
    return absl::InvalidArgumentError("the bytes are no compiled grammar");
  }
  return automaton;
}

}  // namespace pagoda::engine::guided
