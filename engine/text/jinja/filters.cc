#include "engine/text/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/text/jinja/case_mapping.h"
#include "engine/text/jinja/methods.h"
#include "engine/text/jinja/predicates.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Filter = Result (*)(const Value& value, const Arguments& arguments, Budget* budget);

Result ToJsonFilter(const Value& value, const Arguments& arguments, Budget* budget) {
  const Value* indent = arguments.Get(0, "indent");
  const Value* sort_keys = arguments.Get(3, "sort_keys");
  int width = -1;
  if (indent != nullptr && indent->is_int()) {
    if (indent->as_int() < 0 || indent->as_int() > 16)
      return TemplateError("tojson: indent is outside 0 to 16");
    width = static_cast<int>(indent->as_int());
  }
  if (value.extent().has_namespace) return TemplateError("tojson: a namespace has no JSON");
  if (value.is_undefined() || value.extent().has_undefined)
    return TemplateError("tojson: an undefined value has no JSON");
  // Every element is on a line of its own, behind its indentation.
  const Extent& extent = value.extent();
  PAGODA_RETURN_IF_ERROR(
      budget->SpendBytes(size_t{extent.num_nodes} * extent.depth * std::max(width, 0)));
  MarkedString json = ToJson(value, width, sort_keys != nullptr && sort_keys->Truthy());
  PAGODA_RETURN_IF_ERROR(budget->SpendBytes(json.text.size()));
  return Value::String(std::move(json));
}

// Filters that are string methods under another name.
template <const char* const& kMethod>
Result StringMethod(const Value& value, const Arguments& arguments, Budget* budget) {
  return CallMethod(Value::String(value.ToText()), kMethod, arguments, budget);
}
constexpr const char* kStrip = "strip";
constexpr const char* kUpper = "upper";
constexpr const char* kLower = "lower";
constexpr const char* kCapitalize = "capitalize";
constexpr const char* kReplace = "replace";

Result Join(const Value& value, const Arguments& arguments, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  const Value* separator = arguments.Get(0, "d");
  const Value* attribute = arguments.Get(1, "attribute");
  MarkedString out;
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t size_before = out.text.size();
    if (i > 0 && separator != nullptr) out.Append(separator->ToText());
    out.Append(
        (attribute != nullptr ? Attribute(items[i], attribute->ToText().text) : items[i]).ToText());
    PAGODA_RETURN_IF_ERROR(budget->SpendBytes(out.text.size() - size_before));
  }
  return Value::String(std::move(out));
}

Result Length(const Value& value, const Arguments&, Budget*) {
  if (value.is_string())
    return Value::Int(static_cast<int64_t>(NumCodePoints(value.as_string().text)));
  if (value.is_list()) return Value::Int(static_cast<int64_t>(value.as_list().size()));
  if (value.is_dict()) return Value::Int(static_cast<int64_t>(value.as_dict().entries().size()));
  if (value.is_undefined()) return Value::Int(0);
  return TemplateError(absl::StrCat("object of type '", value.TypeName(), "' has no len()"));
}

Result Default(const Value& value, const Arguments& arguments, Budget*) {
  const Value* fallback = arguments.Get(0, "default_value");
  const Value* boolean = arguments.Get(1, "boolean");
  const bool use =
      value.is_undefined() || (boolean != nullptr && boolean->Truthy() && !value.Truthy());
  if (!use) return value;
  return fallback != nullptr ? *fallback : Value::Trusted("");
}

// select, reject, selectattr, rejectattr: `test_position` is where the test's name stands.
Result Select(
    const Value& value, const Arguments& arguments, Budget* budget, bool by_attribute, bool keep) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  const size_t test_position = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty())
    return TemplateError("selectattr needs an attribute");
  std::string test;
  Arguments rest;
  if (arguments.positional.size() > test_position) {
    test = arguments.positional[test_position].ToText().text;
    if (test == "==") test = "eq";
    if (test == "!=") test = "ne";
    if (!IsPredicate(test)) return TemplateError(absl::StrCat("no test named '", test, "'"));
    rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(test_position) + 1,
                           arguments.positional.end());
  }
  List kept;
  for (const Value& item : items) {
    const Value subject =
        by_attribute ? Attribute(item, arguments.positional[0].ToText().text) : item;
    bool holds = subject.Truthy();
    if (!test.empty()) {
      PAGODA_ASSIGN_OR_RETURN(holds, ApplyPredicate(test, subject, rest, budget));
    }
    if (holds == keep) kept.push_back(item);
    PAGODA_RETURN_IF_ERROR(budget->Spend(1));
  }
  return Value::ListOf(std::move(kept));
}

Result Map(const Value& value, const Arguments& arguments, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  const Value* attribute = arguments.Get(std::numeric_limits<size_t>::max(), "attribute");
  const Value* fallback = arguments.Get(std::numeric_limits<size_t>::max(), "default");
  std::string filter;
  Arguments rest;
  if (attribute == nullptr) {
    if (arguments.positional.empty()) return TemplateError("map needs a filter or an attribute");
    filter = arguments.positional[0].ToText().text;
    if (!IsFilter(filter)) return TemplateError(absl::StrCat("no filter named '", filter, "'"));
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  }
  List out;
  for (const Value& item : items) {
    PAGODA_RETURN_IF_ERROR(budget->Spend(1));
    if (attribute != nullptr) {
      Value found = Attribute(item, attribute->ToText().text);
      out.push_back(found.is_undefined() && fallback != nullptr ? *fallback : std::move(found));
    } else {
      PAGODA_ASSIGN_OR_RETURN(Value mapped, ApplyFilter(filter, item, rest, budget));
      out.push_back(std::move(mapped));
    }
  }
  return Value::ListOf(std::move(out));
}

Value Pair(const std::string& key, const Value& value) {
  return Value::ListOf({Value::String(MarkedString(key, false)), value}, /*is_tuple=*/true);
}

Result Items(const Value& value, const Arguments&, Budget* budget) {
  if (value.is_undefined()) return Value::ListOf({});
  if (!value.is_dict()) return TemplateError("items needs a mapping");
  List items;
  for (const auto& [key, item] : value.as_dict().entries()) items.push_back(Pair(key, item));
  PAGODA_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(items.size())));
  return Value::ListOf(std::move(items));
}

std::string SortKey(const Value& value, bool case_sensitive) {
  std::string text = value.as_string().text;
  if (!case_sensitive) absl::AsciiStrToLower(&text);
  return text;
}

// Stable sort of items by a key of each; INVALID_ARGUMENT when keys have no order.
absl::Status SortBy(List* items,
                    bool case_sensitive,
                    bool reverse,
                    const std::function<Value(const Value&)>& key_of) {
  absl::Status status;
  auto less = [&](const Value& a, const Value& b) {
    const Value x = key_of(a), y = key_of(b);
    if (x.is_string() && y.is_string())
      return SortKey(x, case_sensitive) < SortKey(y, case_sensitive);
    const absl::StatusOr<int> order = Compare(x, y);
    if (!order.ok()) status = order.status();
    return order.ok() && *order < 0;
  };
  // Python's reverse keeps the order of equal elements.
  auto greater = [&](const Value& a, const Value& b) { return less(b, a); };
  if (reverse) {
    std::stable_sort(items->begin(), items->end(), greater);
  } else {
    std::stable_sort(items->begin(), items->end(), less);
  }
  return status;
}

bool IsTrue(const Value* value) { return value != nullptr && value->Truthy(); }

Result Sort(const Value& value, const Arguments& arguments, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  const Value* attribute = arguments.Get(2, "attribute");
  const std::string name =
      attribute != nullptr && !attribute->is_none() ? attribute->ToText().text : "";
  for (int pass = 0; pass < 4; ++pass) PAGODA_RETURN_IF_ERROR(budget->SpendVisit(value));
  PAGODA_RETURN_IF_ERROR(
      SortBy(&items,
             IsTrue(arguments.Get(1, "case_sensitive")),
             IsTrue(arguments.Get(0, "reverse")),
             [&](const Value& item) { return name.empty() ? item : Attribute(item, name); }));
  return Value::ListOf(std::move(items));
}

Result DictSort(const Value& value, const Arguments& arguments, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(Value items_value, Items(value, {}, budget));
  List items = items_value.as_list();
  for (int pass = 0; pass < 4; ++pass) PAGODA_RETURN_IF_ERROR(budget->SpendVisit(value));
  const Value* by = arguments.Get(1, "by");
  const size_t part = by != nullptr && by->ToText().text == "value" ? 1 : 0;
  PAGODA_RETURN_IF_ERROR(SortBy(&items,
                                IsTrue(arguments.Get(0, "case_sensitive")),
                                IsTrue(arguments.Get(2, "reverse")),
                                [&](const Value& item) { return item.as_list()[part]; }));
  return Value::ListOf(std::move(items));
}

Result Unique(const Value& value, const Arguments&, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  List out;
  for (const Value& item : items) {
    PAGODA_RETURN_IF_ERROR(budget->Spend(1));
    for (const Value& other : out) PAGODA_RETURN_IF_ERROR(budget->SpendEqual(item, other));
    const bool seen = std::any_of(out.begin(), out.end(), [&](const Value& other) {
      if (item.is_string() && other.is_string())
        return SortKey(item, false) == SortKey(other, false);
      return Equal(item, other);
    });
    if (!seen) out.push_back(item);
  }
  return Value::ListOf(std::move(out));
}

Result First(const Value& value, const Arguments&, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  return items.empty() ? Value() : items.front();
}

Result Last(const Value& value, const Arguments&, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  return items.empty() ? Value() : items.back();
}

Result ToList(const Value& value, const Arguments&, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  return Value::ListOf(std::move(items));
}

Result Reverse(const Value& value, const Arguments&, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  std::reverse(items.begin(), items.end());
  if (!value.is_string()) return Value::ListOf(std::move(items));
  MarkedString out;
  for (const Value& item : items) out.Append(item.as_string());
  return Value::String(std::move(out));
}

Result ToText(const Value& value, const Arguments&, Budget* budget) {
  MarkedString text = value.ToText();
  PAGODA_RETURN_IF_ERROR(budget->SpendBytes(text.text.size()));
  return Value::String(std::move(text));
}

Result ToInt(const Value& value, const Arguments& arguments, Budget*) {
  const Value* fallback = arguments.Get(0, "default");
  if (value.is_float() && std::isfinite(value.as_float()) && std::fabs(value.as_float()) < 9e18) {
    return Value::Int(static_cast<int64_t>(value.as_float()));
  }
  if (value.is_number() && !value.is_float()) return Value::Int(value.as_int());
  int64_t parsed = 0;
  if (value.is_string() && absl::SimpleAtoi(value.as_string().text, &parsed))
    return Value::Int(parsed);
  return fallback != nullptr ? *fallback : Value::Int(0);
}

Result ToFloat(const Value& value, const Arguments& arguments, Budget*) {
  const Value* fallback = arguments.Get(0, "default");
  if (value.is_number()) return Value::Float(value.as_float());
  double parsed = 0;
  if (value.is_string() && absl::SimpleAtod(value.as_string().text, &parsed))
    return Value::Float(parsed);
  return fallback != nullptr ? *fallback : Value::Float(0);
}

Result Abs(const Value& value, const Arguments&, Budget*) {
  if (value.is_float()) return Value::Float(std::fabs(value.as_float()));
  if (!value.is_number()) return TemplateError("abs needs a number");
  if (value.as_int() == std::numeric_limits<int64_t>::min())
    return TemplateError("an integer leaves 64 bits");
  return Value::Int(value.as_int() < 0 ? -value.as_int() : value.as_int());
}

Result Round(const Value& value, const Arguments& arguments, Budget*) {
  if (!value.is_number()) return TemplateError("round needs a number");
  const Value* precision = arguments.Get(0, "precision");
  const double scale =
      std::pow(10.0, precision != nullptr && precision->is_int() ? precision->as_float() : 0.0);
  return Value::Float(std::nearbyint(value.as_float() * scale) / scale);
}

Result Sum(const Value& value, const Arguments& arguments, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  const Value* attribute = arguments.Get(0, "attribute");
  double total = 0;
  int64_t integer_total = 0;
  bool is_float = false, overflows = false;
  for (const Value& item : items) {
    const Value part = attribute != nullptr ? Attribute(item, attribute->ToText().text) : item;
    if (!part.is_number()) return TemplateError("sum needs numbers");
    total += part.as_float();
    is_float = is_float || part.is_float();
    if (!is_float && __builtin_add_overflow(integer_total, part.as_int(), &integer_total))
      overflows = true;
  }
  if (is_float) return Value::Float(total);
  if (overflows) return TemplateError("an integer leaves 64 bits");
  return Value::Int(integer_total);
}

Result Extreme(const Value& value, Budget* budget, int wanted) {
  PAGODA_ASSIGN_OR_RETURN(List items, Elements(value, budget));
  if (items.empty()) return Value();
  PAGODA_RETURN_IF_ERROR(budget->SpendVisit(value));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    PAGODA_ASSIGN_OR_RETURN(int order, Compare(items[i], items[best]));
    if (order == wanted) best = i;
  }
  return items[best];
}

Result Escape(const Value& value, const Arguments&, Budget* budget) {
  const MarkedString text = value.ToText();
  MarkedString out;
  for (size_t i = 0; i < text.text.size(); ++i) {
    const char c = text.text[i];
    std::string piece(1, c);
    if (c == '&') piece = "&amp;";
    if (c == '<') piece = "&lt;";
    if (c == '>') piece = "&gt;";
    if (c == '"') piece = "&#34;";
    if (c == '\'') piece = "&#39;";
    out.Append(MarkedString(std::move(piece), text.trusted[i] != '\0'));
  }
  PAGODA_RETURN_IF_ERROR(budget->SpendBytes(out.text.size()));
  return Value::String(std::move(out));
}

Result Indent(const Value& value, const Arguments& arguments, Budget* budget) {
  const Value* width = arguments.Get(0, "width");
  const bool first = IsTrue(arguments.Get(1, "first"));
  const bool blank = IsTrue(arguments.Get(2, "blank"));
  MarkedString prefix("    ", true);
  if (width != nullptr && width->is_string()) prefix = width->as_string();
  if (width != nullptr && width->is_int()) {
    if (width->as_int() < 0 || width->as_int() > 256)
      return TemplateError("indent: width is outside 0 to 256");
    prefix = MarkedString(std::string(static_cast<size_t>(width->as_int()), ' '), true);
  }
  const MarkedString text = value.ToText();
  MarkedString out;
  size_t begin = 0;
  while (begin <= text.text.size()) {
    const size_t newline = std::min(text.text.find('\n', begin), text.text.size());
    const size_t end = std::min(newline + 1, text.text.size());
    const bool is_blank = newline == begin;
    PAGODA_RETURN_IF_ERROR(budget->SpendBytes(prefix.text.size() + (end - begin)));
    if ((begin > 0 || first) && (blank || !is_blank)) out.Append(prefix);
    out.Append(text.Substr(begin, end - begin));
    if (newline == text.text.size()) break;
    begin = end;
  }
  return Value::String(std::move(out));
}

const absl::flat_hash_map<absl::string_view, Filter>& Filters() {
  using V = const Value&;
  using A = const Arguments&;
  static const auto* const table = new absl::flat_hash_map<absl::string_view, Filter>{
      {"tojson", ToJsonFilter},
      {"trim", StringMethod<kStrip>},
      {"upper", StringMethod<kUpper>},
      {"lower", StringMethod<kLower>},
      {"title",
       [](V v, A, Budget*) -> Result { return Value::String(WordsCapitalized(v.ToText())); }},
      {"capitalize", StringMethod<kCapitalize>},
      {"replace", StringMethod<kReplace>},
      {"join", Join},
      {"length", Length},
      {"count", Length},
      {"default", Default},
      {"d", Default},
      {"select", [](V v, A a, Budget* b) { return Select(v, a, b, false, true); }},
      {"reject", [](V v, A a, Budget* b) { return Select(v, a, b, false, false); }},
      {"selectattr", [](V v, A a, Budget* b) { return Select(v, a, b, true, true); }},
      {"rejectattr", [](V v, A a, Budget* b) { return Select(v, a, b, true, false); }},
      {"map", Map},
      {"items", Items},
      {"dictsort", DictSort},
      {"sort", Sort},
      {"unique", Unique},
      {"first", First},
      {"last", Last},
      {"list", ToList},
      {"reverse", Reverse},
      {"string", ToText},
      {"safe", ToText},
      {"int", ToInt},
      {"float", ToFloat},
      {"abs", Abs},
      {"round", Round},
      {"sum", Sum},
      {"min", [](V v, A, Budget* b) { return Extreme(v, b, -1); }},
      {"max", [](V v, A, Budget* b) { return Extreme(v, b, 1); }},
      {"escape", Escape},
      {"e", Escape},
      {"indent", Indent},
  };
  return *table;
}

}  // namespace

bool IsFilter(absl::string_view name) { return Filters().contains(name); }

Result ApplyFilter(absl::string_view name,
                   const Value& value,
                   const Arguments& arguments,
                   Budget* budget) {
  return Filters().at(name)(value, arguments, budget);
}

absl::StatusOr<List> Elements(const Value& value, Budget* budget) {
  List items;
  if (value.is_list()) {
    items = value.as_list();
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.as_dict().entries())
      items.push_back(Value::String(MarkedString(key, false)));
  } else if (value.is_string()) {
    const MarkedString& text = value.as_string();
    for (size_t at = 0; at < text.text.size();) {
      const size_t n = CodePointOffset(absl::string_view(text.text).substr(at), 1);
      items.push_back(Value::String(text.Substr(at, n)));
      at += n;
    }
  } else if (!value.is_undefined()) {
    return TemplateError(absl::StrCat("'", value.TypeName(), "' object is not iterable"));
  }
  PAGODA_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(items.size())));
  return items;
}

Value Attribute(const Value& value, absl::string_view name) {
  if (value.is_dict()) {
    if (const Value* found = value.as_dict().Find(name)) return *found;
  } else if (value.is_namespace()) {
    if (const Value* found = value.as_namespace().attributes.Find(name)) return *found;
  } else if (value.is_list()) {
    size_t index = 0;
    if (absl::SimpleAtoi(name, &index) && index < value.as_list().size())
      return value.as_list()[index];
  }
  return Value::UndefinedNamed(std::string(name));
}

}  // namespace pagoda::engine::jinja
