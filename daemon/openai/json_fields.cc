#include "daemon/openai/json_fields.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pagoda::daemon::openai {
namespace {

using nlohmann::ordered_json;
using ValueType = ordered_json::value_t;

// Doubles hold every integer up to this.
constexpr double kMostExactDouble = 9007199254740992.0;

std::string Expected(absl::string_view expected, const ordered_json& value) {
  return absl::StrCat("expected ", expected, ", found ", KindOf(value));
}

}  // namespace

std::string KindOf(const ordered_json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  return absl::StrCat(value.is_array() || value.is_object() ? "an " : "a ", value.type_name());
}

absl::optional<int64_t> ReadInteger(const ordered_json& value,
                                    absl::string_view field,
                                    int64_t low,
                                    int64_t high,
                                    FieldChecker* checker) {
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto whole = value.get<uint64_t>();
    if (whole > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      checker->Fail(field,
                    absl::StrCat(whole, " is out of range; expected [", low, ", ", high, "]"));
      return absl::nullopt;
    }
    number = static_cast<int64_t>(whole);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const auto real = value.get<double>();
    if (std::trunc(real) != real || std::abs(real) > kMostExactDouble) {
      checker->Fail(field, absl::StrCat("expected a whole number, found ", real));
      return absl::nullopt;
    }
    number = static_cast<int64_t>(real);
  } else {
    checker->Fail(field, Expected("a whole number", value));
    return absl::nullopt;
  }
  if (!checker->CheckInt(field, number, low, high)) return absl::nullopt;
  return number;
}

absl::optional<float> ReadFloat(const ordered_json& value,
                                absl::string_view field,
                                FieldChecker* checker) {
  if (!value.is_number()) {
    checker->Fail(field, Expected("a number", value));
    return absl::nullopt;
  }
  const auto number = value.get<double>();
  if (std::abs(number) > std::numeric_limits<float>::max()) {
    checker->Fail(field, absl::StrCat(number, " is out of range"));
    return absl::nullopt;
  }
  return static_cast<float>(number);
}

std::string JsonFields::PathOf(absl::string_view name) const {
  return path_.empty() ? std::string(name) : absl::StrCat(path_, ".", name);
}

void JsonFields::Fail(absl::string_view name, absl::string_view description) const {
  checker_->Fail(PathOf(name), description);
}

const ordered_json* JsonFields::Find(absl::string_view name) const {
  const auto found = object_->find(std::string(name));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

const ordered_json* JsonFields::FindTyped(absl::string_view name,
                                          ValueType type,
                                          absl::string_view expected) const {
  const ordered_json* value = Find(name);
  if (value == nullptr || value->type() == type) return value;
  Fail(name, Expected(expected, *value));
  return nullptr;
}

absl::optional<bool> JsonFields::Bool(absl::string_view name) const {
  const ordered_json* value = FindTyped(name, ValueType::boolean, "true or false");
  if (value == nullptr) return absl::nullopt;
  return value->get<bool>();
}

absl::optional<float> JsonFields::Float(absl::string_view name) const {
  const ordered_json* value = Find(name);
  if (value == nullptr) return absl::nullopt;
  return ReadFloat(*value, PathOf(name), checker_);
}

absl::optional<int64_t> JsonFields::Integer(absl::string_view name,
                                            int64_t low,
                                            int64_t high) const {
  const ordered_json* value = Find(name);
  if (value == nullptr) return absl::nullopt;
  return ReadInteger(*value, PathOf(name), low, high, checker_);
}

absl::optional<uint32_t> JsonFields::Count(absl::string_view name) const {
  const auto value = Integer(name, 0, std::numeric_limits<uint32_t>::max());
  if (!value.has_value()) return absl::nullopt;
  return static_cast<uint32_t>(*value);
}

absl::optional<std::string> JsonFields::String(absl::string_view name) const {
  const ordered_json* value = FindTyped(name, ValueType::string, "a string");
  if (value == nullptr) return absl::nullopt;
  return value->get<std::string>();
}

std::string JsonFields::StringOr(absl::string_view name, absl::string_view otherwise) const {
  return String(name).value_or(std::string(otherwise));
}

std::vector<std::string> JsonFields::Strings(absl::string_view name) const {
  std::vector<std::string> out;
  const ordered_json* value = Find(name);
  if (value == nullptr) return out;
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) {
    Fail(name, Expected("a string or a list of strings", *value));
    return out;
  }
  for (const ordered_json& item : *value) {
    if (!item.is_string()) {
      Fail(absl::StrCat(name, "[", out.size(), "]"), Expected("a string", item));
      return {};
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<uint32_t> JsonFields::Ids(absl::string_view name) const {
  std::vector<uint32_t> out;
  const ordered_json* value = FindTyped(name, ValueType::array, "a list of token ids");
  if (value == nullptr) return out;
  for (const ordered_json& item : *value) {
    const auto id = ReadInteger(item,
                                absl::StrCat(PathOf(name), "[", out.size(), "]"),
                                0,
                                std::numeric_limits<uint32_t>::max(),
                                checker_);
    if (!id.has_value()) return {};
    out.push_back(static_cast<uint32_t>(*id));
  }
  return out;
}

const ordered_json* JsonFields::Object(absl::string_view name) const {
  return FindTyped(name, ValueType::object, "an object");
}

const ordered_json* JsonFields::Array(absl::string_view name) const {
  return FindTyped(name, ValueType::array, "a list");
}

}  // namespace pagoda::daemon::openai
