#include "engine/guided/number_range.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/numbers.h"

namespace pagoda::engine::guided {
namespace {

constexpr int kUsualIntegerDigits = 18, kMaxSignificantDigits = 15;

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return order < 0 ? -1 : 1;
  return a.fraction == b.fraction ? 0 : a.fraction < b.fraction ? -1 : 1;
}

// Numbers without sign from `low` to `high`, of one length of the whole part.
class MagnitudeWriter {
 public:
  using Bound = NumberRange::Bound;

  MagnitudeWriter(const Bound& low, const Bound& high, bool integers_only, StateId to, Grammar* g)
      : low_(low), high_(high), integers_only_(integers_only), to_(to), grammar_(g) {}

  void Write(int num_digits, StateId from) {
    num_digits_ = num_digits;
    states_.clear();
    WriteWhole(0,
               num_digits == static_cast<int>(low_.value.whole.size()),
               num_digits == static_cast<int>(high_.value.whole.size()),
               from);
  }

 private:
  // Follows the bounds digit by digit: while all digits were the bound's own, the next one may not
  // pass the bound's.
  void WriteWhole(int position, bool on_low, bool on_high, StateId from) {
    if (position == num_digits_) {
      if (MayEnd(0, on_low, on_high)) grammar_->AddEmpty(from, to_);
      const int num_fraction_digits = kMaxSignificantDigits - num_digits_;
      if (integers_only_ || num_fraction_digits <= 0) return;
      WriteFraction(0, num_fraction_digits, on_low, on_high, grammar_->Literal(from, "."));
      return;
    }
    const char first = position == 0 && num_digits_ > 1 ? '1' : '0';
    const char low = std::max(first, on_low ? low_.value.whole[Index(position)] : '0');
    const char high = on_high ? high_.value.whole[Index(position)] : '9';
    for (char digit = low; digit <= high; ++digit) {
      const bool still_low = on_low && digit == low_.value.whole[Index(position)];
      const bool still_high = on_high && digit == high_.value.whole[Index(position)];
      const auto [state, is_new] = StateOf({position + 1, still_low, still_high});
      grammar_->AddBytes(from, static_cast<uint8_t>(digit), static_cast<uint8_t>(digit), state);
      if (is_new) WriteWhole(position + 1, still_low, still_high, state);
    }
  }

  void WriteFraction(int position, int num_digits, bool on_low, bool on_high, StateId from) {
    if (position > 0 && MayEnd(position, on_low, on_high)) grammar_->AddEmpty(from, to_);
    if (position == num_digits) return;
    const char low = on_low ? FractionDigit(low_, position) : '0';
    const char high = on_high ? FractionDigit(high_, position) : '9';
    for (char digit = low; digit <= high; ++digit) {
      const bool still_low = on_low && digit == low;
      const bool still_high = on_high && digit == high;
      const auto [state, is_new] = StateOf({num_digits_ + 2 + position, still_low, still_high});
      grammar_->AddBytes(from, static_cast<uint8_t>(digit), static_cast<uint8_t>(digit), state);
      if (is_new) WriteFraction(position + 1, num_digits, still_low, still_high, state);
    }
  }

  static size_t Index(int position) { return static_cast<size_t>(position); }
  static char FractionDigit(const Bound& bound, int position) {
    const std::string& digits = bound.value.fraction;
    return Index(position) < digits.size() ? digits[Index(position)] : '0';
  }

  // After so many digits of the fraction.
  bool MayEnd(int num_fraction_digits, bool on_low, bool on_high) const {
    const auto is_equal = [&](const Bound& bound) {
      return Index(num_fraction_digits) >= bound.value.fraction.size();
    };
    // Cut off before the bound's last digits, a number is below it.
    if (on_low && (!is_equal(low_) || low_.is_open)) return false;
    return !(on_high && is_equal(high_) && high_.is_open);
  }

  std::pair<StateId, bool> StateOf(const std::tuple<int, bool, bool>& place) {
    const auto [it, is_new] = states_.try_emplace(place, 0);
    if (is_new) it->second = grammar_->AddState();
    return {it->second, is_new};
  }

  const Bound& low_;
  const Bound& high_;
  const bool integers_only_;
  const StateId to_;
  Grammar* const grammar_;
  int num_digits_ = 0;
  std::map<std::tuple<int, bool, bool>, StateId> states_;
};

// REQUIRES: no bound is negative.
void AddMagnitudes(const std::optional<NumberRange::Bound>& least,
                   const std::optional<NumberRange::Bound>& most,
                   bool integers_only,
                   StateId from,
                   StateId to,
                   Grammar* grammar) {
  const NumberRange::Bound low = least.value_or(NumberRange::Bound());
  const int usual = integers_only ? kUsualIntegerDigits : kMaxSignificantDigits;
  NumberRange::Bound high;
  high.value.whole =
      std::string(std::max<size_t>(static_cast<size_t>(usual), low.value.whole.size() + 1), '9');
  if (most.has_value() && CompareMagnitudes(most->value, high.value) <= 0) high = *most;
  if (CompareMagnitudes(low.value, high.value) > 0) return;
  MagnitudeWriter writer(low, high, integers_only, to, grammar);
  for (size_t size = low.value.whole.size(); size <= high.value.whole.size(); ++size)
    writer.Write(static_cast<int>(size), from);
}

}  // namespace

Decimal Decimal::Parse(absl::string_view text) {
  Decimal out;
  if (!text.empty() && text.front() == '-') {
    out.is_negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != absl::string_view::npos) {
    absl::string_view digits = text.substr(e + 1);
    if (!digits.empty() && digits.front() == '+') digits.remove_prefix(1);
    if (!absl::SimpleAtoi(digits, &exponent)) exponent = 0;
    text = text.substr(0, e);
  }
  // Numbers of the language's own types come here: exponents are small.
  exponent = std::clamp(exponent, -400, 400);
  const size_t dot = std::min(text.find('.'), text.size());
  std::string digits(text.substr(0, dot));
  if (dot < text.size()) digits += std::string(text.substr(dot + 1));
  int whole_size = static_cast<int>(dot) + exponent;
  if (whole_size < 0) {
    digits.insert(0, static_cast<size_t>(-whole_size), '0');
    whole_size = 0;
  }
  if (whole_size > static_cast<int>(digits.size()))
    digits.append(static_cast<size_t>(whole_size) - digits.size(), '0');
  out.whole = digits.substr(0, static_cast<size_t>(whole_size));
  out.fraction = digits.substr(static_cast<size_t>(whole_size));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.is_zero()) out.is_negative = false;
  return out;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  return a.is_negative ? CompareMagnitudes(b, a) : CompareMagnitudes(a, b);
}

void NumberRange::AtLeast(const Bound& bound) {
  const int order = low.has_value() ? Compare(bound.value, low->value) : 1;
  if (order > 0) low = bound;
  if (order == 0) low->is_open |= bound.is_open;
}

void NumberRange::AtMost(const Bound& bound) {
  const int order = high.has_value() ? Compare(bound.value, high->value) : -1;
  if (order < 0) high = bound;
  if (order == 0) high->is_open |= bound.is_open;
}

StateId AddNumberRange(const NumberRange& range, StateId from, Grammar* grammar) {
  const StateId to = grammar->AddState();
  const auto negated = [](std::optional<NumberRange::Bound> bound) {
    if (bound.has_value()) bound->value.is_negative = !bound->value.is_negative;
    return bound;
  };
  const auto is_negative = [](const std::optional<NumberRange::Bound>& bound) {
    return bound.has_value() && bound->value.is_negative;
  };
  if (!is_negative(range.high)) {
    const auto low = is_negative(range.low) ? std::nullopt : range.low;
    AddMagnitudes(low, range.high, range.integers_only, from, to, grammar);
  }
  const bool has_negative = !range.low.has_value() || is_negative(range.low);
  if (has_negative) {
    // "-0" is left out.
    std::optional<NumberRange::Bound> least = NumberRange::Bound{.is_open = true};
    if (is_negative(range.high)) least = negated(range.high);
    AddMagnitudes(
        least, negated(range.low), range.integers_only, grammar->Literal(from, "-"), to, grammar);
  }
  return to;
}

}  // namespace pagoda::engine::guided
