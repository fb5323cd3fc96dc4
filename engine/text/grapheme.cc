#include "engine/text/grapheme.h"

#include <unicode/uchar.h>

#include "engine/text/utf8.h"

namespace pagoda::engine {
namespace {

using Break = UGraphemeClusterBreak;

Break BreakOf(char32_t c) {
  return static_cast<Break>(
      u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_GRAPHEME_CLUSTER_BREAK));
}

bool IsControl(Break b) { return b == U_GCB_CONTROL || b == U_GCB_CR || b == U_GCB_LF; }

// What rules that look at more than two characters need to know of those before.
struct State {
  Break previous = U_GCB_OTHER;
  bool emoji_before = false;  // ExtPict Extend*, or that and a ZWJ
  bool emoji_zwj = false;
  int num_flags = 0;  // regional indicators right before
};

// The rules GB3 to GB13 of UAX #29.
bool Breaks(const State& state, Break next, bool is_pictographic) {
  const Break previous = state.previous;
  if (previous == U_GCB_CR && next == U_GCB_LF) return false;
  if (IsControl(previous) || IsControl(next)) return true;
  if (previous == U_GCB_L &&
      (next == U_GCB_L || next == U_GCB_V || next == U_GCB_LV || next == U_GCB_LVT))
    return false;
  if ((previous == U_GCB_LV || previous == U_GCB_V) && (next == U_GCB_V || next == U_GCB_T))
    return false;
  if ((previous == U_GCB_LVT || previous == U_GCB_T) && next == U_GCB_T) return false;
  if (next == U_GCB_EXTEND || next == U_GCB_ZWJ || next == U_GCB_SPACING_MARK) return false;
  if (previous == U_GCB_PREPEND) return false;
  if (state.emoji_zwj && is_pictographic) return false;
  return !(next == U_GCB_REGIONAL_INDICATOR && state.num_flags % 2 == 1);
}

void Advance(Break next, bool is_pictographic, State* state) {
  state->emoji_zwj = state->emoji_before && next == U_GCB_ZWJ;
  state->emoji_before = is_pictographic || (state->emoji_before && next == U_GCB_EXTEND);
  state->num_flags = next == U_GCB_REGIONAL_INDICATOR ? state->num_flags + 1 : 0;
  state->previous = next;
}

}  // namespace

void ForEachGrapheme(absl::string_view text,
                     absl::FunctionRef<void(size_t begin, size_t end)> visit) {
  State state;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const char32_t c = NextCodePoint(text, &i);
    const Break next = BreakOf(c);
    const bool is_pictographic =
        u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_EXTENDED_PICTOGRAPHIC) != 0;
    if (at > begin && Breaks(state, next, is_pictographic)) {
      visit(begin, at);
      begin = at;
      state = State();
    }
    Advance(next, is_pictographic, &state);
  }
  if (begin < text.size()) visit(begin, text.size());
}

}  // namespace pagoda::engine
