#include "tests/reference/json_schema.h"

#include <algorithm>
#include <cmath>
#include <regex>

namespace pagoda::reference {
namespace {

using nlohmann::json;

bool HasType(const json& value, const std::string& type) {
  if (type == "integer")
    return value.is_number_integer() ||
           (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
  if (type == "number") return value.is_number();
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

size_t Length(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Patterns of ASCII alone can be searched bytewise.
bool IsAscii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

std::string CheckFormat(const std::string& text, const std::string& format) {
  static const std::pair<const char*, const char*> kFormats[] = {
      {"date", R"(\d\d\d\d-\d\d-\d\d)"},
      {"time", R"(\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d))"},
      {"date-time", R"(\d\d\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d))"},
      {"duration", R"(P(?=.)(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)"},
      {"email", R"([^@\s]+@[a-z0-9.-]+)"},
      {"hostname", R"([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)"},
      {"ipv4", R"((\d{1,3}\.){3}\d{1,3})"},
      {"ipv6", R"(([0-9a-f]{1,4}:){7}[0-9a-f]{1,4})"},
      {"uri", R"(https?://[^\s"<>]+)"},
      {"uuid", R"([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})"}};
  for (const auto& [name, pattern] : kFormats) {
    if (format == name && !std::regex_match(text, std::regex(pattern))) return "format " + format;
  }
  return "";
}

std::string CheckString(const std::string& text, const json& schema) {
  if (schema.contains("minLength") && Length(text) < schema["minLength"]) return "minLength";
  if (schema.contains("maxLength") && Length(text) > schema["maxLength"]) return "maxLength";
  if (schema.contains("pattern")) {
    const auto pattern = schema["pattern"].get<std::string>();
    if (IsAscii(pattern) && IsAscii(text) && !std::regex_search(text, std::regex(pattern)))
      return "pattern";
  }
  if (schema.contains("format")) return CheckFormat(text, schema["format"]);
  return "";
}

std::string CheckNumber(const json& value, const json& schema) {
  if (schema.contains("minimum") && value < schema["minimum"]) return "minimum";
  if (schema.contains("maximum") && value > schema["maximum"]) return "maximum";
  if (schema.contains("exclusiveMinimum") && value <= schema["exclusiveMinimum"])
    return "exclusiveMinimum";
  if (schema.contains("exclusiveMaximum") && value >= schema["exclusiveMaximum"])
    return "exclusiveMaximum";
  if (schema.contains("multipleOf") &&
      std::fmod(value.get<double>(), schema["multipleOf"].get<double>()) != 0)
    return "multipleOf";
  return "";
}

std::string CheckArray(const json& value, const json& schema, const json& root) {
  if (schema.contains("minItems") && value.size() < schema["minItems"]) return "minItems";
  if (schema.contains("maxItems") && value.size() > schema["maxItems"]) return "maxItems";
  const json prefix = schema.value("prefixItems", json::array());
  for (size_t i = 0; i < value.size(); ++i) {
    const json* item = i < prefix.size()          ? &prefix[i]
                       : schema.contains("items") ? &schema["items"]
                                                  : nullptr;
    if (item == nullptr) continue;
    if (std::string why = WhyInvalid(value[i], *item, root); !why.empty())
      return "[" + std::to_string(i) + "] " + why;
  }
  return "";
}

std::string CheckObject(const json& value, const json& schema, const json& root) {
  for (const json& name : schema.value("required", json::array()))
    if (!value.contains(name.get<std::string>())) return "required " + name.get<std::string>();
  if (schema.contains("maxProperties") && value.size() > schema["maxProperties"])
    return "maxProperties";
  const json properties = schema.value("properties", json::object());
  for (const auto& [name, member] : value.items()) {
    const json* of = properties.contains(name)                 ? &properties[name]
                     : schema.contains("additionalProperties") ? &schema["additionalProperties"]
                                                               : nullptr;
    if (of == nullptr) continue;
    if (std::string why = WhyInvalid(member, *of, root); !why.empty()) return name + ": " + why;
  }
  return "";
}

std::string CheckCombined(const json& value, const json& schema, const json& root) {
  const auto count = [&](const json& options) {
    return std::count_if(options.begin(), options.end(), [&](const json& option) {
      return WhyInvalid(value, option, root).empty();
    });
  };
  if (schema.contains("allOf") &&
      count(schema["allOf"]) != static_cast<int64_t>(schema["allOf"].size()))
    return "allOf";
  if (schema.contains("anyOf") && count(schema["anyOf"]) == 0) return "anyOf";
  if (schema.contains("oneOf") && count(schema["oneOf"]) != 1) return "oneOf";
  if (schema.contains("$ref")) {
    const auto reference = schema["$ref"].get<std::string>();
    return WhyInvalid(value, root.at(json::json_pointer(reference.substr(1))), root);
  }
  return "";
}

}  // namespace

std::string WhyInvalid(const json& value, const json& schema, const json& root) {
  if (schema.is_boolean()) return schema.get<bool>() ? "" : "false";
  if (schema.contains("type")) {
    const json& type = schema["type"];
    const bool fits =
        type.is_array()
            ? std::any_of(type.begin(),
                          type.end(),
                          [&](const json& t) { return HasType(value, t.get<std::string>()); })
            : HasType(value, type.get<std::string>());
    if (!fits) return "type";
  }
  if (schema.contains("const") && value != schema["const"]) return "const";
  if (schema.contains("enum")) {
    const json& values = schema["enum"];
    if (std::find(values.begin(), values.end(), value) == values.end()) return "enum";
  }
  std::string why = CheckCombined(value, schema, root);
  if (why.empty() && value.is_string()) why = CheckString(value.get<std::string>(), schema);
  if (why.empty() && value.is_number()) why = CheckNumber(value, schema);
  if (why.empty() && value.is_array()) why = CheckArray(value, schema, root);
  if (why.empty() && value.is_object()) why = CheckObject(value, schema, root);
  return why;
}

}  // namespace pagoda::reference
