#include "engine/guided/schema_reader.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/guided/string_format.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::guided {
namespace {

// Ways to satisfy one schema, and steps on the way to them over a whole document.
constexpr size_t kMaxShapes = 512;
constexpr int64_t kMaxExpansions = 50'000;
constexpr size_t kMaxProperties = 1000;

// What says nothing about values.
bool IsAnnotation(absl::string_view keyword) {
  static constexpr absl::string_view kAnnotations[] = {"$anchor",
                                                       "$comment",
                                                       "$defs",
                                                       "$id",
                                                       "$schema",
                                                       "contentEncoding",
                                                       "contentMediaType",
                                                       "default",
                                                       "definitions",
                                                       "deprecated",
                                                       "description",
                                                       "discriminator",
                                                       "example",
                                                       "examples",
                                                       "readOnly",
                                                       "title",
                                                       "writeOnly"};
  return absl::StartsWith(keyword, "x-") ||
         std::find(std::begin(kAnnotations), std::end(kAnnotations), keyword) !=
             std::end(kAnnotations);
}

bool IsObjectKeyword(absl::string_view keyword) {
  return keyword == "properties" || keyword == "required" || keyword == "additionalProperties";
}
bool IsArrayKeyword(absl::string_view keyword) {
  return keyword == "items" || keyword == "prefixItems";
}

bool IsInsideCharacter(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// The beginning of a name, in whole characters.
std::string Shortened(const std::string& name) {
  size_t size = std::min<size_t>(name.size(), 64);
  while (size > 0 && size < name.size() && IsInsideCharacter(name[size])) --size;
  return name.substr(0, size);
}

// Brackets in each other, those in strings not counted.
int32_t NestingOf(absl::string_view text) {
  int32_t depth = 0, max_depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      max_depth = std::max(max_depth, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return max_depth;
}

}  // namespace

// A conjunction on its way to a shape.
struct SchemaReader::Branch {
  SchemaShape shape;
  SchemaList todo;
  size_t next_todo = 0;
  std::vector<std::pair<const Json*, const Json*>> choices;  // schema, its options
  SchemaList references;                                     // followed on the way here
  int32_t depth = 0;                                         // choices made
};

absl::StatusOr<SchemaReader> SchemaReader::Parse(absl::string_view text, const Limits& limits) {
  // A schema in a schema takes two brackets or three.
  if (NestingOf(text) > 3 * limits.max_depth)
    return absl::InvalidArgumentError(
        absl::StrCat("is nested more than ", 3 * limits.max_depth, " deep"));
  SchemaReader reader(limits);
  std::string error;
  Json json;
  try {
    json = Json::parse(text.begin(), text.end());
  } catch (const Json::exception& e) {
    // The library's text may repeat bytes that are no UTF-8.
    const auto* parse_error = dynamic_cast<const Json::parse_error*>(&e);
    return absl::InvalidArgumentError(
        absl::StrCat("is not valid JSON",
                     parse_error != nullptr ? absl::StrCat(", at byte ", parse_error->byte) : ""));
  }
  reader.root_ = std::make_unique<Json>(std::move(json));
  reader.NotePlaces(reader.root_.get(), "#");
  return reader;
}

void SchemaReader::NotePlaces(const Json* value, const std::string& place) {
  if (!value->is_structured()) {
    if (value->is_boolean()) place_of_[value] = place;
    return;
  }
  place_of_[value] = place;
  if (value->is_array()) {
    for (size_t i = 0; i < value->size(); ++i)
      NotePlaces(&(*value)[i], absl::StrCat(place, "/", i));
    return;
  }
  for (const auto& [key, member] : value->items())
    NotePlaces(&member, absl::StrCat(place, "/", key));
}

std::string SchemaReader::PlaceOf(const Json* schema) const {
  const auto it = place_of_.find(schema);
  return it == place_of_.end() ? "#" : it->second;
}

absl::Status SchemaReader::Error(const Json* schema, absl::string_view what) const {
  constexpr size_t kMaxPlace = 200;
  std::string place = PlaceOf(schema);
  if (place.size() > kMaxPlace) {
    size_t begin = place.size() - kMaxPlace;
    while (begin < place.size() && IsInsideCharacter(place[begin])) ++begin;
    place = absl::StrCat("...", place.substr(begin));
  }
  return absl::InvalidArgumentError(absl::StrCat("at ", place, ": ", what));
}

absl::StatusOr<const Json*> SchemaReader::Resolve(const Json* schema,
                                                  const std::string& reference) const {
  if (reference.empty() || reference[0] != '#' || (reference.size() > 1 && reference[1] != '/')) {
    return Error(schema,
                 absl::StrCat("$ref is supported to places of this document alone, as \"#/...\""));
  }
  const Json* at = root_.get();
  std::vector<std::string> parts = absl::StrSplit(reference.substr(1), '/');
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::string key = absl::StrReplaceAll(parts[i], {{"~1", "/"}, {"~0", "~"}});
    size_t idx = 0;
    if (at->is_object() && at->contains(key)) {
      at = &(*at)[key];
    } else if (at->is_array() && absl::SimpleAtoi(key, &idx) && idx < at->size()) {
      at = &(*at)[idx];
    } else {
      return Error(schema, absl::StrCat("$ref: there is nothing at ", Shortened(reference)));
    }
  }
  return at;
}

absl::StatusOr<std::vector<SchemaShape>> SchemaReader::Shapes(const SchemaList& schemas) {
  std::vector<SchemaShape> shapes;
  Branch branch;
  branch.todo = schemas;
  PAGODA_RETURN_IF_ERROR(Expand(std::move(branch), &shapes));
  return shapes;
}

absl::Status SchemaReader::Expand(Branch branch, std::vector<SchemaShape>* shapes) {
  // What is copied for each choice counts.
  constexpr size_t kCopiesAStep = 8;
  num_expansions_ += static_cast<int64_t>(
      1 + (branch.shape.properties.size() + branch.references.size() +
           (branch.shape.values.has_value() ? branch.shape.values->size() : 0)) /
              kCopiesAStep);
  if (num_expansions_ > kMaxExpansions || shapes->size() > kMaxShapes) {
    return Error(root_.get(), "the choices of anyOf, oneOf and allOf multiply beyond the limit");
  }
  if (branch.depth > limits_.max_depth)
    return Error(root_.get(),
                 absl::StrCat("choices are nested more than ", limits_.max_depth, " deep"));
  while (branch.next_todo < branch.todo.size()) {
    const Json* const schema = branch.todo[branch.next_todo++];
    if (schema->is_boolean()) {
      if (!schema->get<bool>()) return absl::OkStatus();
      continue;
    }
    if (!schema->is_object()) return Error(schema, "a schema is an object or a boolean");
    PAGODA_RETURN_IF_ERROR(ReadSchema(schema, &branch));
  }
  if (branch.choices.empty()) {
    PAGODA_RETURN_IF_ERROR(FilterValues(&branch.shape));
    if (branch.shape.WrittenTypes() != 0) shapes->push_back(std::move(branch.shape));
    return absl::OkStatus();
  }
  const auto [schema, options] = branch.choices.back();
  branch.choices.pop_back();
  for (const Json& option : *options) {
    Branch chosen = branch;
    ++chosen.depth;
    chosen.todo.assign(1, &option);
    chosen.next_todo = 0;
    PAGODA_RETURN_IF_ERROR(Expand(std::move(chosen), shapes));
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::ReadSchema(const Json* schema, Branch* branch) {
  bool has_object_keywords = false, has_array_keywords = false;
  for (const auto& [keyword, value] : schema->items()) {
    if (IsAnnotation(keyword)) continue;
    has_object_keywords |= IsObjectKeyword(keyword);
    has_array_keywords |= IsArrayKeyword(keyword);
    if (IsObjectKeyword(keyword) || IsArrayKeyword(keyword)) continue;
    PAGODA_RETURN_IF_ERROR(ReadKeyword(schema, keyword, value, branch));
  }
  if (has_object_keywords) PAGODA_RETURN_IF_ERROR(ReadObjectKeywords(schema, &branch->shape));
  if (has_array_keywords) PAGODA_RETURN_IF_ERROR(ReadArrayKeywords(schema, &branch->shape));
  return absl::OkStatus();
}

absl::Status SchemaReader::ReadKeyword(const Json* schema,
                                       const std::string& keyword,
                                       const Json& value,
                                       Branch* branch) {
  SchemaShape& shape = branch->shape;
  const auto implies = [&](uint8_t types) {
    shape.implied_types |= types;
    return absl::OkStatus();
  };
  if (keyword == "type") return ReadType(schema, value, &shape);
  if (keyword == "$ref") {
    if (!value.is_string()) return Error(schema, "$ref is a string");
    PAGODA_ASSIGN_OR_RETURN(const Json* target, Resolve(schema, value.get<std::string>()));
    if (std::find(branch->references.begin(), branch->references.end(), target) !=
        branch->references.end()) {
      return Error(schema, "$ref leads to itself without anything between");
    }
    branch->references.push_back(target);
    branch->todo.push_back(target);
    return absl::OkStatus();
  }
  if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf") {
    if (!value.is_array() || value.empty())
      return Error(schema, absl::StrCat(keyword, " is an array of schemas, at least one"));
    if (keyword == "allOf") {
      for (const Json& part : value) branch->todo.push_back(&part);
      return absl::OkStatus();
    }
    if (keyword == "oneOf") PAGODA_RETURN_IF_ERROR(CheckOneOf(schema, value));
    branch->choices.emplace_back(schema, &value);
    return absl::OkStatus();
  }
  if (keyword == "enum" || keyword == "const") {
    if (keyword == "enum" && !value.is_array()) return Error(schema, "enum is an array");
    const std::vector<Json> values =
        keyword == "enum" ? value.get<std::vector<Json>>() : std::vector<Json>{value};
    if (!shape.values.has_value()) {
      shape.values = values;
      return absl::OkStatus();
    }
    std::erase_if(*shape.values, [&](const Json& known) {
      return std::find(values.begin(), values.end(), known) == values.end();
    });
    return absl::OkStatus();
  }
  if (keyword == "minimum" || keyword == "maximum" || keyword == "exclusiveMinimum" ||
      keyword == "exclusiveMaximum") {
    PAGODA_RETURN_IF_ERROR(ReadBound(schema, keyword, value, &shape.range));
    return implies(kNumber);
  }
  if (keyword == "pattern" || keyword == "format") {
    if (!value.is_string()) return Error(schema, absl::StrCat(keyword, " is a string"));
    auto& held = keyword == "pattern" ? shape.pattern : shape.format;
    const auto text = value.get<std::string>();
    if (held.has_value() && *held != text)
      return Error(schema, absl::StrCat(keyword, " is not supported twice for one string"));
    if (keyword == "format" && !FormatPattern(text).has_value())
      return Error(schema, "format: this one is not supported");
    held = text;
    return implies(kString);
  }
  if (keyword == "multipleOf") {
    if (!value.is_number() || value.get<double>() != 1.0)
      return Error(schema, "multipleOf is not supported but for 1");
    if ((shape.types & kNumber) != 0)
      shape.types = static_cast<uint8_t>((shape.types & ~kNumber) | kInteger);
    return implies(kInteger);
  }
  if (keyword == "uniqueItems") {
    if (value.is_boolean() && !value.get<bool>()) return absl::OkStatus();
    const auto max_items = schema->find("maxItems");
    if (max_items != schema->end() && max_items->is_number() && max_items->get<double>() <= 1)
      return implies(kArray);
    return Error(schema, "uniqueItems is not supported");
  }
  return ReadCount(schema, keyword, value, &shape);
}

absl::Status SchemaReader::ReadType(const Json* schema,
                                    const Json& value,
                                    SchemaShape* shape) const {
  static constexpr std::pair<absl::string_view, uint8_t> kTypes[] = {{"null", kNull},
                                                                     {"boolean", kBoolean},
                                                                     {"integer", kInteger},
                                                                     {"number", kNumber},
                                                                     {"string", kString},
                                                                     {"array", kArray},
                                                                     {"object", kObject}};
  const std::vector<Json> names =
      value.is_array() ? value.get<std::vector<Json>>() : std::vector<Json>{value};
  uint8_t types = 0;
  for (const Json& name : names) {
    const auto* const type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) {
      return name.is_string() && name.get<std::string>() == t.first;
    });
    if (type == std::end(kTypes)) return Error(schema, "type: not a name of a JSON type");
    types |= type->second;
  }
  // An integer is a number: each side may name the one or the other.
  uint8_t both = shape->types & types;
  if ((shape->types & kNumber) != 0 && (types & kInteger) != 0) both |= kInteger;
  if ((shape->types & kInteger) != 0 && (types & kNumber) != 0) both |= kInteger;
  if ((both & kNumber) != 0) both &= static_cast<uint8_t>(~kInteger);
  shape->types = both;
  shape->names_types = true;
  return absl::OkStatus();
}

absl::Status SchemaReader::ReadBound(const Json* schema,
                                     const std::string& keyword,
                                     const Json& value,
                                     NumberRange* range) const {
  if (!value.is_number() || (value.is_number_float() && !std::isfinite(value.get<double>()))) {
    return Error(schema, absl::StrCat(keyword, " is a number"));
  }
  const NumberRange::Bound bound = {.value = Decimal::Parse(NumberText(value)),
                                    .is_open = absl::StartsWith(keyword, "exclusive")};
  const bool is_low = keyword == "minimum" || keyword == "exclusiveMinimum";
  is_low ? range->AtLeast(bound) : range->AtMost(bound);
  return absl::OkStatus();
}

absl::Status SchemaReader::ReadCount(const Json* schema,
                                     const std::string& keyword,
                                     const Json& value,
                                     SchemaShape* shape) const {
  struct Count {
    absl::string_view keyword;
    uint8_t type;
    int32_t* least;
    std::optional<int32_t>* most;
  };
  const Count counts[] = {
      {"minLength", kString, &shape->min_length, nullptr},
      {"maxLength", kString, nullptr, &shape->max_length},
      {"minItems", kArray, &shape->min_items, nullptr},
      {"maxItems", kArray, nullptr, &shape->max_items},
      {"minProperties", kObject, &shape->min_properties, nullptr},
      {"maxProperties", kObject, nullptr, &shape->max_properties},
  };
  const auto* const count = std::find_if(
      std::begin(counts), std::end(counts), [&](const Count& c) { return c.keyword == keyword; });
  if (count == std::end(counts))
    return Error(schema, absl::StrCat(Shortened(keyword), " is not supported"));
  const double number = value.is_number() ? value.get<double>() : -1;
  if (number < 0 || number != std::floor(number))
    return Error(schema, absl::StrCat(keyword, " is a whole number of at least 0"));
  if (count->least != nullptr && number > limits_.max_count) {
    return Error(schema, absl::StrCat(keyword, " is above the limit of ", limits_.max_count));
  }
  const auto whole = static_cast<int32_t>(std::min<double>(number, limits_.max_count));
  if (count->least != nullptr) {
    *count->least = std::max(*count->least, whole);
  } else {
    *count->most = std::min(count->most->value_or(whole), whole);
  }
  shape->implied_types |= count->type;
  return absl::OkStatus();
}

absl::Status SchemaReader::ReadObjectKeywords(const Json* schema, SchemaShape* shape) const {
  shape->implied_types |= kObject;
  const auto find = [&](const char* keyword) -> const Json* {
    const auto it = schema->find(keyword);
    return it == schema->end() ? nullptr : &*it;
  };
  const Json* const properties = find("properties");
  if (properties != nullptr && !properties->is_object())
    return Error(schema, "properties is an object");
  const Json* const additional = find("additionalProperties");
  if (additional != nullptr && !additional->is_object() && !additional->is_boolean())
    return Error(schema, "additionalProperties is a schema");
  // What either side says of other properties holds for those that the other names.
  if (additional != nullptr) {
    for (auto& [name, schemas] : shape->properties) {
      if (properties == nullptr || !properties->contains(name)) schemas.push_back(additional);
    }
  }
  if (properties != nullptr) {
    for (const auto& [name, property] : properties->items()) {
      if (SchemaList* const known = shape->FindProperty(name); known != nullptr) {
        known->push_back(&property);
        continue;
      }
      if (shape->properties.size() >= kMaxProperties)
        return Error(schema, absl::StrCat("properties holds more than ", kMaxProperties));
      SchemaList schemas = shape->additional.value_or(SchemaList());
      schemas.push_back(&property);
      shape->properties.emplace_back(name, std::move(schemas));
    }
  }
  if (additional != nullptr) {
    if (!shape->additional.has_value()) shape->additional.emplace();
    shape->additional->push_back(additional);
  }
  if (const Json* const required = find("required"); required != nullptr) {
    if (!required->is_array()) return Error(schema, "required is an array of names");
    for (const Json& name : *required) {
      if (!name.is_string()) return Error(schema, "required is an array of names");
      shape->required.insert(name.get<std::string>());
    }
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::ReadArrayKeywords(const Json* schema, SchemaShape* shape) const {
  shape->implied_types |= kArray;
  const auto items = schema->find("items");
  if (items != schema->end() && !items->is_object() && !items->is_boolean())
    return Error(schema, "items is one schema; for a list of them there is prefixItems");
  const auto prefix = schema->find("prefixItems");
  if (prefix != schema->end() && !prefix->is_array())
    return Error(schema, "prefixItems is an array of schemas");
  const size_t num_prefix = prefix == schema->end() ? 0 : prefix->size();
  const size_t num_known = shape->prefix_items.size();
  for (size_t i = 0; i < std::max(num_prefix, num_known); ++i) {
    if (i >= num_known) shape->prefix_items.push_back(shape->items.value_or(SchemaList()));
    if (i < num_prefix) {
      shape->prefix_items[i].push_back(&(*prefix)[i]);
    } else if (items != schema->end()) {
      shape->prefix_items[i].push_back(&*items);
    }
  }
  if (items != schema->end()) {
    if (!shape->items.has_value()) shape->items.emplace();
    shape->items->push_back(&*items);
  }
  return absl::OkStatus();
}

}  // namespace pagoda::engine::guided
