#include "engine/guided/schema_shape.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace pagoda::engine::guided {

uint8_t SchemaShape::WrittenTypes() const {
  if (names_types || values.has_value() || implied_types == 0) return types;
  return types & implied_types;
}

SchemaList* SchemaShape::FindProperty(const std::string& name) {
  for (auto& [known, schemas] : properties)
    if (known == name) return &schemas;
  return nullptr;
}

uint8_t TypeOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return kNull;
    case Json::value_t::boolean:
      return kBoolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return kInteger;
    case Json::value_t::number_float: {
      const auto number = value.get<double>();
      return number == std::floor(number) ? kInteger : kNumber;
    }
    case Json::value_t::string:
      return kString;
    case Json::value_t::array:
      return kArray;
    default:
      return kObject;
  }
}

std::string NumberText(const Json& value) {
  if (!value.is_number_float()) return value.dump();
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value.get<double>()).ptr;
  return std::string(text, end);
}

bool AreDisjointByValue(const SchemaShape& a, const SchemaShape& b) {
  const auto with_numbers = [](uint8_t types) {
    return static_cast<uint8_t>((types & kInteger) != 0 ? types | kNumber : types);
  };
  if ((with_numbers(a.types) & with_numbers(b.types)) == 0) return true;
  if (!a.values.has_value() || !b.values.has_value()) return false;
  return std::none_of(a.values->begin(), a.values->end(), [&](const Json& value) {
    return std::find(b.values->begin(), b.values->end(), value) != b.values->end();
  });
}

}  // namespace pagoda::engine::guided
