#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/guided/schema_reader.h"
#include "kernels/base/status_macros.h"

// The parts of SchemaReader that compare: options of oneOf with each other, listed values with
// other keywords.
namespace pagoda::engine::guided {
namespace {

// Of objects in objects that tell the options of a oneOf apart.
constexpr int32_t kMaxDisjointDepth = 4;

int64_t CountCodePoints(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

absl::Status SchemaReader::CheckOneOf(const Json* schema, const Json& options) {
  // Once: a reference that leads back here would ask the same question again.
  if (!checked_one_of_.insert(schema).second) return absl::OkStatus();
  std::vector<std::vector<SchemaShape>> shapes;
  for (const Json& option : options) {
    PAGODA_ASSIGN_OR_RETURN(std::vector<SchemaShape> ways, Shapes({&option}));
    shapes.push_back(std::move(ways));
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (size_t j = i + 1; j < shapes.size(); ++j) {
      for (const SchemaShape& a : shapes[i]) {
        for (const SchemaShape& b : shapes[j]) {
          PAGODA_ASSIGN_OR_RETURN(const bool are_disjoint, AreDisjoint(a, b, 0));
          if (!are_disjoint) {
            return Error(schema,
                         absl::StrCat("oneOf is supported where no value can fit two options; "
                                      "options ",
                                      i,
                                      " and ",
                                      j,
                                      " are not told apart by type, "
                                      "const, enum or a required property with const or enum"));
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SchemaReader::AreDisjoint(const SchemaShape& a,
                                               const SchemaShape& b,
                                               int32_t depth) {
  if (AreDisjointByValue(a, b)) return true;
  if ((a.types & b.types) != kObject || depth >= kMaxDisjointDepth) return false;
  for (const auto& [name, of_a] : a.properties) {
    if (a.required.count(name) == 0 || b.required.count(name) == 0) continue;
    for (const auto& [other, of_b] : b.properties) {
      if (other != name) continue;
      PAGODA_ASSIGN_OR_RETURN(const std::vector<SchemaShape> shapes_a, Shapes(of_a));
      PAGODA_ASSIGN_OR_RETURN(const std::vector<SchemaShape> shapes_b, Shapes(of_b));
      bool all = true;
      for (const SchemaShape& x : shapes_a) {
        for (const SchemaShape& y : shapes_b) {
          PAGODA_ASSIGN_OR_RETURN(const bool are_disjoint, AreDisjoint(x, y, depth + 1));
          all &= are_disjoint;
        }
      }
      if (all) return true;
    }
  }
  return false;
}

absl::Status SchemaReader::FilterValues(SchemaShape* shape) const {
  if (!shape->values.has_value()) return absl::OkStatus();
  uint8_t types = 0;
  for (const Json& value : *shape->values) types |= TypeOf(value);
  const auto refuse = [&](absl::string_view what) {
    return Error(root_.get(),
                 absl::StrCat("enum or const together with ", what, " is not supported"));
  };
  if ((types & kString) != 0 && shape->pattern.has_value()) return refuse("pattern");
  if ((types & kString) != 0 && shape->format.has_value()) return refuse("format");
  if ((types & kArray) != 0 && (shape->implied_types & kArray) != 0)
    return refuse("keywords of arrays");
  if ((types & kObject) != 0 && (shape->implied_types & kObject) != 0)
    return refuse("keywords of objects");
  std::erase_if(*shape->values, [&](const Json& value) {
    const uint8_t type = TypeOf(value);
    const bool has_type =
        (shape->types & type) != 0 || (type == kInteger && (shape->types & kNumber) != 0);
    if (!has_type) return true;
    if (value.is_number()) {
      const Decimal number = Decimal::Parse(NumberText(value));
      const auto& [low, high, integers_only] = shape->range;
      if (low.has_value() && Compare(number, low->value) < (low->is_open ? 1 : 0)) return true;
      return high.has_value() && Compare(number, high->value) > (high->is_open ? -1 : 0);
    }
    if (!value.is_string()) return false;
    const int64_t length = CountCodePoints(value.get<std::string>());
    return length < shape->min_length || length > shape->max_length.value_or(INT32_MAX);
  });
  types = 0;
  for (const Json& value : *shape->values) types |= TypeOf(value);
  shape->types = types;
  return absl::OkStatus();
}

}  // namespace pagoda::engine::guided
