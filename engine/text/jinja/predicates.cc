#include "engine/text/jinja/predicates.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::jinja {
namespace {

using Predicate = absl::StatusOr<bool> (*)(const Value& value,
                                           const Arguments& arguments,
                                           Budget* budget);

absl::StatusOr<const Value*> Operand(const Arguments& arguments) {
  if (arguments.positional.size() != 1) return TemplateError("a test needs one argument");
  return &arguments.positional[0];
}

template <typename Accept>
absl::StatusOr<bool> CompareWith(const Value& value, const Arguments& arguments, Accept accept) {
  PAGODA_ASSIGN_OR_RETURN(const Value* other, Operand(arguments));
  PAGODA_ASSIGN_OR_RETURN(int order, Compare(value, *other));
  return accept(order);
}

absl::StatusOr<bool> IsEqual(const Value& value, const Arguments& arguments, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(const Value* other, Operand(arguments));
  PAGODA_RETURN_IF_ERROR(budget->SpendEqual(value, *other));
  return Equal(value, *other);
}

absl::StatusOr<bool> IsDifferent(const Value& value, const Arguments& arguments, Budget* budget) {
  PAGODA_ASSIGN_OR_RETURN(bool equal, IsEqual(value, arguments, budget));
  return !equal;
}

absl::StatusOr<bool> IsDivisible(const Value& value, const Arguments& arguments, Budget*) {
  PAGODA_ASSIGN_OR_RETURN(const Value* by, Operand(arguments));
  if (!value.is_int() || !by->is_int() || by->as_int() == 0 || by->as_int() == -1) {
    return TemplateError("divisibleby needs integers above 0");
  }
  return value.as_int() % by->as_int() == 0;
}

absl::StatusOr<bool> IsParity(const Value& value, int64_t parity) {
  if (!value.is_int()) return TemplateError("odd and even need an integer");
  return (value.as_int() & 1) == parity;
}

bool AllCase(const Value& value, bool (*wrong)(unsigned char)) {
  if (!value.is_string()) return false;
  for (char c : value.as_string().text) {
    if (wrong(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

const absl::flat_hash_map<absl::string_view, Predicate>& Predicates() {
  using V = const Value&;
  using A = const Arguments&;
  using R = absl::StatusOr<bool>;
  static const auto* const table = new absl::flat_hash_map<absl::string_view, Predicate>{
      {"defined", [](V v, A, Budget*) -> R { return !v.is_undefined(); }},
      {"undefined", [](V v, A, Budget*) -> R { return v.is_undefined(); }},
      {"none", [](V v, A, Budget*) -> R { return v.is_none(); }},
      {"string", [](V v, A, Budget*) -> R { return v.is_string(); }},
      {"boolean", [](V v, A, Budget*) -> R { return v.is_bool(); }},
      {"true", [](V v, A, Budget*) -> R { return v.is_bool() && v.Truthy(); }},
      {"false", [](V v, A, Budget*) -> R { return v.is_bool() && !v.Truthy(); }},
      {"integer", [](V v, A, Budget*) -> R { return v.is_int(); }},
      {"float", [](V v, A, Budget*) -> R { return v.is_float(); }},
      {"number", [](V v, A, Budget*) -> R { return v.is_number(); }},
      {"mapping", [](V v, A, Budget*) -> R { return v.is_dict(); }},
      {"sequence",
       [](V v, A, Budget*) -> R { return v.is_list() || v.is_string() || v.is_dict(); }},
      {"iterable",
       [](V v, A, Budget*) -> R {
         return v.is_list() || v.is_string() || v.is_dict() || v.is_undefined();
       }},
      {"callable", [](V v, A, Budget*) -> R { return v.is_macro(); }},
      {"even", [](V v, A, Budget*) -> R { return IsParity(v, 0); }},
      {"odd", [](V v, A, Budget*) -> R { return IsParity(v, 1); }},
      {"divisibleby", IsDivisible},
      {"equalto", IsEqual},
      {"eq", IsEqual},
      {"sameas", IsEqual},
      {"ne", IsDifferent},
      {"lt", [](V v, A a, Budget*) -> R { return CompareWith(v, a, [](int o) { return o < 0; }); }},
      {"lessthan",
       [](V v, A a, Budget*) -> R { return CompareWith(v, a, [](int o) { return o < 0; }); }},
      {"le",
       [](V v, A a, Budget*) -> R { return CompareWith(v, a, [](int o) { return o <= 0; }); }},
      {"gt", [](V v, A a, Budget*) -> R { return CompareWith(v, a, [](int o) { return o > 0; }); }},
      {"greaterthan",
       [](V v, A a, Budget*) -> R { return CompareWith(v, a, [](int o) { return o > 0; }); }},
      {"ge",
       [](V v, A a, Budget*) -> R { return CompareWith(v, a, [](int o) { return o >= 0; }); }},
      {"in",
       [](V v, A a, Budget* budget) -> R {
         PAGODA_ASSIGN_OR_RETURN(const Value* container, Operand(a));
         return Contains(*container, v, budget);
       }},
      {"lower", [](V v, A, Budget*) -> R { return AllCase(v, absl::ascii_isupper); }},
      {"upper", [](V v, A, Budget*) -> R { return AllCase(v, absl::ascii_islower); }},
  };
  return *table;
}

}  // namespace

bool IsPredicate(absl::string_view name) { return Predicates().contains(name); }

absl::StatusOr<bool> ApplyPredicate(absl::string_view name,
                                    const Value& value,
                                    const Arguments& arguments,
                                    Budget* budget) {
  return Predicates().at(name)(value, arguments, budget);
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget* budget) {
  if (container.is_string()) {
    if (!item.is_string()) return TemplateError("'in <string>' needs a string on its left");
    PAGODA_RETURN_IF_ERROR(
        budget->SpendSearch(container.as_string().text.size(), item.as_string().text.size()));
    return absl::StrContains(container.as_string().text, item.as_string().text);
  }
  if (container.is_list()) {
    PAGODA_RETURN_IF_ERROR(budget->SpendVisit(container));
    for (const Value& element : container.as_list()) {
      if (Equal(element, item)) return true;
    }
    return false;
  }
  if (container.is_dict()) {
    return item.is_string() && container.as_dict().Find(item.as_string().text) != nullptr;
  }
  if (container.is_undefined()) return false;
  return TemplateError(absl::StrCat("'", container.TypeName(), "' holds nothing"));
}

}  // namespace pagoda::engine::jinja
