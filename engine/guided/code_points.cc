#include "engine/guided/code_points.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace pagoda::engine::guided {
namespace {

constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF, kLast = 0x10FFFF;

// Bytes of one UTF-8 length, as ranges position by position.
struct Encoding {
  std::array<uint8_t, 4> bytes;
  int size;
};

Encoding Encode(uint32_t c) {
  const auto tail = [c](int shift) { return static_cast<uint8_t>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {{static_cast<uint8_t>(c)}, 1};
  if (c < 0x800) return {{static_cast<uint8_t>(0xC0 | (c >> 6)), tail(0)}, 2};
  if (c < 0x10000) return {{static_cast<uint8_t>(0xE0 | (c >> 12)), tail(6), tail(0)}, 3};
  return {{static_cast<uint8_t>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)}, 4};
}

// Strings of bytes from `low` to `high`, of equal length, as paths from `from` to `to`. Where bytes
// after the first take all values, one path holds them.
void AddByteStrings(
    const uint8_t* low, const uint8_t* high, int size, StateId from, StateId to, Grammar* grammar) {
  if (size == 1) {
    grammar->AddBytes(from, low[0], high[0], to);
    return;
  }
  constexpr std::array<uint8_t, 3> kLowest = {0x80, 0x80, 0x80}, kHighest = {0xBF, 0xBF, 0xBF};
  const auto descend = [&](uint8_t first, uint8_t last, const uint8_t* l, const uint8_t* h) {
    if (first > last) return;
    const StateId next = grammar->AddState();
    grammar->AddBytes(from, first, last, next);
    AddByteStrings(l, h, size - 1, next, to, grammar);
  };
  if (low[0] == high[0]) {
    descend(low[0], low[0], low + 1, high + 1);
    return;
  }
  const bool low_is_first = std::equal(low + 1, low + size, kLowest.begin());
  const bool high_is_last = std::equal(high + 1, high + size, kHighest.begin());
  const int first = low_is_first ? low[0] : low[0] + 1;
  const int last = high_is_last ? high[0] : high[0] - 1;
  if (!low_is_first) descend(low[0], low[0], low + 1, kHighest.data());
  if (first <= last) {
    descend(
        static_cast<uint8_t>(first), static_cast<uint8_t>(last), kLowest.data(), kHighest.data());
  }
  if (!high_is_last) descend(high[0], high[0], kLowest.data(), high + 1);
}

void AddRange(uint32_t low, uint32_t high, StateId from, StateId to, Grammar* grammar) {
  for (const uint32_t end : {0x7FU, 0x7FFU, 0xFFFFU, kLast}) {
    if (low > end) continue;
    const uint32_t last = std::min(high, end);
    const Encoding l = Encode(low), h = Encode(last);
    AddByteStrings(l.bytes.data(), h.bytes.data(), l.size, from, to, grammar);
    if (high <= end) return;
    low = end + 1;
  }
}

const char* ShortEscape(uint32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return nullptr;
  }
}

}  // namespace

CodePointSet::CodePointSet(std::vector<Range> ranges) : ranges_(std::move(ranges)) { Normalize(); }

CodePointSet CodePointSet::All() { return CodePointSet({{0, kLast}}); }

void CodePointSet::Normalize() {
  std::vector<Range> split;
  for (const auto& [low, high] : ranges_) {
    if (low < kFirstSurrogate) split.emplace_back(low, std::min(high, kFirstSurrogate - 1));
    if (high > kLastSurrogate) split.emplace_back(std::max(low, kLastSurrogate + 1), high);
  }
  std::sort(split.begin(), split.end());
  ranges_.clear();
  for (const auto& [low, high] : split) {
    if (low > high) continue;
    if (!ranges_.empty() && low <= ranges_.back().second + 1) {
      ranges_.back().second = std::max(ranges_.back().second, high);
    } else {
      ranges_.emplace_back(low, high);
    }
  }
}

void CodePointSet::Add(uint32_t low, uint32_t high) {
  ranges_.emplace_back(low, high);
  Normalize();
}

CodePointSet CodePointSet::Union(const CodePointSet& other) const {
  std::vector<Range> ranges = ranges_;
  ranges.insert(ranges.end(), other.ranges_.begin(), other.ranges_.end());
  return CodePointSet(std::move(ranges));
}

CodePointSet CodePointSet::Complement() const {
  std::vector<Range> ranges;
  uint32_t next = 0;
  for (const auto& [low, high] : ranges_) {
    if (low > next) ranges.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLast) ranges.emplace_back(next, kLast);
  return CodePointSet(std::move(ranges));
}

CodePointSet CodePointSet::Intersect(const CodePointSet& other) const {
  std::vector<Range> ranges;
  size_t i = 0, j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    const uint32_t low = std::max(ranges_[i].first, other.ranges_[j].first);
    const uint32_t high = std::min(ranges_[i].second, other.ranges_[j].second);
    if (low <= high) ranges.emplace_back(low, high);
    ++(ranges_[i].second < other.ranges_[j].second ? i : j);
  }
  return CodePointSet(std::move(ranges));
}

bool CodePointSet::Contains(uint32_t code_point) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    return range.first <= code_point && code_point <= range.second;
  });
}

StateId AddCharacter(const CodePointSet& set, StateId from, Grammar* grammar) {
  const StateId to = grammar->AddState();
  for (const auto& [low, high] : set.ranges()) AddRange(low, high, from, to, grammar);
  return to;
}

StateId AddJsonCharacter(const CodePointSet& set, StateId from, Grammar* grammar) {
  const CodePointSet escaped({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  const StateId to = AddCharacter(set.Minus(escaped), from, grammar);
  const CodePointSet in_escapes = set.Intersect(escaped);
  for (const auto& [low, high] : in_escapes.ranges()) {
    for (uint32_t c = low; c <= high; ++c) {
      char spelled[8];
      std::snprintf(spelled, sizeof(spelled), "\\u%04x", c);
      const char* const short_escape = ShortEscape(c);
      const StateId end = grammar->Literal(from, short_escape != nullptr ? short_escape : spelled);
      grammar->AddEmpty(end, to);
    }
  }
  return to;
}

}  // namespace pagoda::engine::guided
