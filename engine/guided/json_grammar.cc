#include "engine/guided/json_grammar.h"

#include <algorithm>
#include <map>

#include "engine/guided/code_points.h"

namespace pagoda::engine::guided {
namespace {

constexpr int kMaxIndent = 20;
constexpr int kMaxIntegerDigits = 18, kMaxWholeDigits = 15, kMaxFractionDigits = 15;

// What a string holds without an escape.
const CodePointSet& Unescaped() {
  static const CodePointSet* const set =
      new CodePointSet(CodePointSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}).Complement());
  return *set;
}

// A code point of valid UTF-8 at `position`, which moves on; UINT32_MAX where there is none.
uint32_t NextCodePoint(absl::string_view text, size_t* position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(*position);
  const size_t size = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (*position + size > text.size()) return UINT32_MAX;
  uint32_t c = size == 1 ? first : first & (0x7FU >> size);
  for (size_t i = 1; i < size; ++i) c = (c << 6) | (byte(*position + i) & 0x3FU);
  *position += size;
  return c;
}

}  // namespace

template <typename Build>
RuleId JsonGrammar::Once(std::optional<RuleId>* rule, absl::string_view name, Build build) {
  if (!rule->has_value()) {
    *rule = grammar_->AddRule(name);
    const RuleId id = **rule;
    grammar_->AddEmpty(build(grammar_->rule(id).start), grammar_->rule(id).end);
  }
  return **rule;
}

StateId JsonGrammar::Digits(StateId from, int min, int max) {
  const StateId to = grammar_->AddState();
  for (int i = 0; i < max; ++i) {
    if (i >= min) grammar_->AddEmpty(from, to);
    const StateId next = grammar_->AddState();
    grammar_->AddBytes(from, '0', '9', next);
    from = next;
  }
  grammar_->AddEmpty(from, to);
  return to;
}

StateId JsonGrammar::WholePart(StateId from, int max_digits) {
  const StateId first = grammar_->AddState();
  const StateId to = grammar_->AddState();
  grammar_->AddBytes(from, '0', '0', to);
  grammar_->AddBytes(from, '1', '9', first);
  grammar_->AddEmpty(Digits(first, 0, max_digits - 1), to);
  return to;
}

RuleId JsonGrammar::Integer() {
  return Once(&integer_, "an integer", [&](StateId from) {
    const StateId sign = grammar_->Literal(from, "-");
    grammar_->AddEmpty(from, sign);
    return WholePart(sign, kMaxIntegerDigits);
  });
}

RuleId JsonGrammar::Number() {
  return Once(&number_, "a number", [&](StateId from) {
    const StateId sign = grammar_->Literal(from, "-");
    grammar_->AddEmpty(from, sign);
    const StateId whole = WholePart(sign, kMaxWholeDigits);
    const StateId fraction = Digits(grammar_->Literal(whole, "."), 1, kMaxFractionDigits);
    grammar_->AddEmpty(whole, fraction);
    const StateId exponent = grammar_->AddState();
    grammar_->AddBytes(fraction, 'e', 'e', exponent);
    grammar_->AddBytes(fraction, 'E', 'E', exponent);
    const StateId exponent_sign = grammar_->AddState();
    grammar_->AddBytes(exponent, '+', '+', exponent_sign);
    grammar_->AddBytes(exponent, '-', '-', exponent_sign);
    grammar_->AddEmpty(exponent, exponent_sign);
    const StateId to = Digits(exponent_sign, 1, 2);
    grammar_->AddEmpty(fraction, to);
    return to;
  });
}

StateId JsonGrammar::AddCharacter(StateId from) {
  const StateId to = guided::AddCharacter(Unescaped(), from, grammar_);
  const StateId escape = grammar_->Literal(from, "\\");
  for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'})
    grammar_->AddBytes(escape, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
  const auto hex = [&](StateId at, absl::string_view digits) {
    const StateId next = grammar_->AddState();
    for (const char c : digits)
      grammar_->AddBytes(at, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
    return next;
  };
  constexpr absl::string_view kHex = "0123456789abcdefABCDEF";
  const StateId four = grammar_->Literal(escape, "u");
  // No surrogates but in pairs.
  const StateId two = hex(hex(four, "0123456789abcefABCEF"), kHex);
  const StateId surrogate = hex(four, "dD");
  grammar_->AddEmpty(hex(surrogate, "01234567"), two);
  grammar_->AddEmpty(hex(hex(two, kHex), kHex), to);
  const StateId high = hex(hex(hex(surrogate, "89abAB"), kHex), kHex);
  const StateId low = hex(hex(grammar_->Literal(high, "\\u"), "dD"), "cdefCDEF");
  grammar_->AddEmpty(hex(hex(low, kHex), kHex), to);
  return to;
}

RuleId JsonGrammar::Character() {
  return Once(&character_, "a character", [&](StateId from) { return AddCharacter(from); });
}

RuleId JsonGrammar::String() {
  return Once(&string_, "a string", [&](StateId from) {
    const StateId loop = grammar_->Literal(from, "\"");
    grammar_->AddEmpty(AddCharacter(loop), loop);
    return grammar_->Literal(loop, "\"");
  });
}

StateId JsonGrammar::Space(StateId from) {
  const RuleId rule = Once(&space_, "a space", [&](StateId start) {
    const StateId to = grammar_->Literal(start, " ");
    StateId indent = grammar_->Literal(start, "\n");
    for (int i = 0; i < kMaxIndent; ++i) {
      grammar_->AddEmpty(indent, to);
      const StateId next = grammar_->AddState();
      grammar_->AddBytes(indent, ' ', ' ', next);
      grammar_->AddBytes(indent, '\t', '\t', next);
      indent = next;
    }
    grammar_->AddEmpty(indent, to);
    return to;
  });
  return grammar_->Call(from, rule, 0, 1);
}

StateId JsonGrammar::Open(StateId from, char open) {
  return Space(grammar_->Literal(from, absl::string_view(&open, 1)));
}
StateId JsonGrammar::Close(StateId from, char close) {
  return grammar_->Literal(Space(from), absl::string_view(&close, 1));
}
StateId JsonGrammar::Comma(StateId from) { return Space(grammar_->Literal(from, ",")); }

StateId JsonGrammar::Key(StateId from, absl::string_view quoted) {
  return Space(grammar_->Literal(grammar_->Literal(from, quoted), ":"));
}

StateId JsonGrammar::KeyBeside(StateId from, const std::vector<std::string>& names) {
  if (names.empty()) return Space(grammar_->Literal(grammar_->Call(from, String()), ":"));
  // A tree of the names by code points: a name may leave it anywhere, and end anywhere in it but
  // where a name ends. Without escapes, which could spell a name otherwise.
  struct Place {
    std::map<uint32_t, size_t> next;
    bool is_name = false;
    StateId state = 0;
  };
  std::vector<Place> places(1);
  for (const std::string& name : names) {
    size_t at = 0;
    bool is_spelled = true;
    for (size_t i = 0; i < name.size() && is_spelled;) {
      const uint32_t c = NextCodePoint(name, &i);
      is_spelled = c != UINT32_MAX && Unescaped().Contains(c);
      if (!is_spelled) break;
      const auto [it, is_new] = places[at].next.try_emplace(c, places.size());
      at = it->second;
      if (is_new) places.emplace_back();
    }
    // A name that needs an escape cannot be written here anyway.
    if (is_spelled) places[at].is_name = true;
  }
  for (Place& place : places) place.state = grammar_->AddState();
  grammar_->AddEmpty(grammar_->Literal(from, "\""), places[0].state);
  const StateId beside = grammar_->AddState();
  grammar_->AddEmpty(guided::AddCharacter(Unescaped(), beside, grammar_), beside);
  const StateId end = grammar_->Literal(beside, "\"");
  for (const Place& place : places) {
    CodePointSet known;
    for (const auto& [c, next] : place.next) {
      known.Add(c, c);
      grammar_->AddEmpty(guided::AddCharacter(CodePointSet({{c, c}}), place.state, grammar_),
                         places[next].state);
    }
    grammar_->AddEmpty(guided::AddCharacter(Unescaped().Minus(known), place.state, grammar_),
                       beside);
    if (!place.is_name) grammar_->AddBytes(place.state, '"', '"', end);
  }
  return Space(grammar_->Literal(end, ":"));
}

RuleId JsonGrammar::Object() {
  return Once(&object_, "an object", [&](StateId from) {
    const StateId open = Open(from, '{');
    const StateId loop = grammar_->AddState();
    grammar_->AddEmpty(open, loop);
    const StateId pair = grammar_->Call(KeyBeside(loop, {}), Value());
    grammar_->AddEmpty(Comma(pair), loop);
    const StateId end = grammar_->AddState();
    grammar_->AddEmpty(open, end);
    grammar_->AddEmpty(pair, end);
    return Close(end, '}');
  });
}

RuleId JsonGrammar::Array() {
  return Once(&array_, "an array", [&](StateId from) {
    const StateId open = Open(from, '[');
    const StateId loop = grammar_->AddState();
    grammar_->AddEmpty(open, loop);
    const StateId item = grammar_->Call(loop, Value());
    grammar_->AddEmpty(Comma(item), loop);
    const StateId end = grammar_->AddState();
    grammar_->AddEmpty(open, end);
    grammar_->AddEmpty(item, end);
    return Close(end, ']');
  });
}

RuleId JsonGrammar::Value() {
  return Once(&value_, "a value", [&](StateId from) {
    const StateId to = grammar_->AddState();
    for (const absl::string_view word : {"null", "true", "false"})
      grammar_->AddEmpty(grammar_->Literal(from, word), to);
    // Objects and arrays call this rule again; it has its id by now.
    for (const RuleId rule : {String(), Number(), Object(), Array()})
      grammar_->AddCall(from, rule, to);
    return to;
  });
}

}  // namespace pagoda::engine::guided
