#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/guided/number_range.h"

namespace pagoda::engine::guided {

// Keeps the order of members: properties are written in it.
using Json = nlohmann::ordered_json;

// Schemas that all hold. Pointers into a document that lives as long as its users.
using SchemaList = std::vector<const Json*>;

// Types of JSON values, as bits; integers are numbers.
enum JsonType : uint8_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,
  kString = 16,
  kArray = 32,
  kObject = 64,
};
inline constexpr uint8_t kAllTypes = 127 & ~kInteger;

// One way in which a value can satisfy a schema: no choices but between types are left. A schema is
// a list of shapes; a value has to fit one of them.
struct SchemaShape {
  uint8_t types = kAllTypes;
  bool names_types = false;
  // Types that keywords speak about: where no type is named, values are of these.
  uint8_t implied_types = 0;
  std::optional<std::vector<Json>> values;  // of enum and const

  NumberRange range;

  int32_t min_length = 0;
  std::optional<int32_t> max_length;
  std::optional<std::string> pattern;
  std::optional<std::string> format;

  std::vector<SchemaList> prefix_items;
  std::optional<SchemaList> items;  // of the others; none: nothing said
  int32_t min_items = 0;
  std::optional<int32_t> max_items;

  std::vector<std::pair<std::string, SchemaList>> properties;
  std::set<std::string> required;
  std::optional<SchemaList> additional;  // of other properties; none: nothing said
  int32_t min_properties = 0;
  std::optional<int32_t> max_properties;

  // What may be written: `types`, or those that keywords imply.
  uint8_t WrittenTypes() const;
  SchemaList* FindProperty(const std::string& name);
};

// The one bit of a value's type; integers also where they are written with a fraction of zeros.
uint8_t TypeOf(const Json& value);
// The decimal digits of a number; the shortest that mean it.
std::string NumberText(const Json& value);

// True where no value fits both for a reason that is easily seen: types, or lists of values.
// (Objects that differ in a property are looked at by SchemaReader::AreDisjoint.)
bool AreDisjointByValue(const SchemaShape& a, const SchemaShape& b);

}  // namespace pagoda::engine::guided
