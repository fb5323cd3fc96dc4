#include "engine/model/config_fields.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/json_file.h"

namespace pagoda::engine {
namespace {

bool IsIntIn(const nlohmann::json& value, int32_t min, int32_t max) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    return max >= 0 && number <= static_cast<uint64_t>(max) && static_cast<int64_t>(number) >= min;
  }
  if (!value.is_number_integer()) return false;
  const int64_t number = value.get<int64_t>();
  return number >= min && number <= max;
}

std::string IntRange(int32_t min, int32_t max) {
  return absl::StrCat("an integer from ", min, " to ", max);
}

std::string NumberRange(double min, double max) {
  return absl::StrFormat("a number from %g to %g", min, max);
}

}  // namespace

ConfigFields::ConfigFields(std::string path, std::string prefix, nlohmann::json object)
    : path_(std::move(path)), prefix_(std::move(prefix)), object_(std::move(object)) {}

bool ConfigFields::Has(absl::string_view name) const {
  const auto it = object_.find(std::string(name));
  return it != object_.end() && !it->is_null();
}

absl::string_view ConfigFields::Pick(const std::vector<absl::string_view>& names) {
  absl::string_view picked;
  for (const absl::string_view name : names) {
    if (!Has(name)) continue;
    if (picked.empty()) {
      picked = name;
      continue;
    }
    const nlohmann::json* a = Read(name);
    const nlohmann::json* b = Read(picked);
    if (a != nullptr && b != nullptr && *a != *b) {
      Refuse(name, absl::StrCat("the value of ", picked, ", the same field"));
    }
  }
  return picked.empty() ? names.front() : picked;
}

const nlohmann::json* ConfigFields::Read(absl::string_view name) {
  read_.insert(std::string(name));
  if (!status_.ok() || !Has(name)) return nullptr;
  return &object_[std::string(name)];
}

const nlohmann::json* ConfigFields::ReadRequired(absl::string_view name,
                                                 absl::string_view expected) {
  const nlohmann::json* value = Read(name);
  if (value == nullptr) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", prefix_, name, " is missing; expected ", expected)));
  }
  return value;
}

int32_t ConfigFields::RequiredInt(absl::string_view name, int32_t min, int32_t max) {
  if (ReadRequired(name, IntRange(min, max)) == nullptr) return min;
  return OptionalInt(name, min, max).value_or(min);
}

absl::optional<int32_t> ConfigFields::OptionalInt(absl::string_view name,
                                                  int32_t min,
                                                  int32_t max) {
  const nlohmann::json* value = Read(name);
  if (value == nullptr) return absl::nullopt;
  if (!IsIntIn(*value, min, max)) {
    Refuse(name, IntRange(min, max));
    return absl::nullopt;
  }
  return value->get<int32_t>();
}

double ConfigFields::RequiredNumber(absl::string_view name, double min, double max) {
  if (ReadRequired(name, NumberRange(min, max)) == nullptr) return min;
  return OptionalNumber(name, min, max).value_or(min);
}

absl::optional<double> ConfigFields::OptionalNumber(absl::string_view name,
                                                    double min,
                                                    double max) {
  const nlohmann::json* value = Read(name);
  if (value == nullptr) return absl::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= min && number <= max)) {
    Refuse(name, NumberRange(min, max));
    return absl::nullopt;
  }
  return number;
}

absl::optional<bool> ConfigFields::OptionalBool(absl::string_view name) {
  const nlohmann::json* value = Read(name);
  if (value == nullptr) return absl::nullopt;
  if (!value->is_boolean()) {
    Refuse(name, "true or false");
    return absl::nullopt;
  }
  return value->get<bool>();
}

absl::optional<std::string> ConfigFields::OptionalString(absl::string_view name) {
  const nlohmann::json* value = Read(name);
  if (value == nullptr) return absl::nullopt;
  if (!value->is_string()) {
    Refuse(name, "a string");
    return absl::nullopt;
  }
  return value->get<std::string>();
}

std::vector<int32_t> ConfigFields::IntOrList(absl::string_view name, int32_t min, int32_t max) {
  const nlohmann::json* value = Read(name);
  if (value == nullptr) return {};
  std::vector<int32_t> numbers;
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  for (const nlohmann::json& item : list) {
    if (!IsIntIn(item, min, max)) {
      Refuse(name, absl::StrCat(IntRange(min, max), ", or a list of them"));
      return {};
    }
    numbers.push_back(item.get<int32_t>());
  }
  return numbers;
}

std::vector<double> ConfigFields::Numbers(absl::string_view name, double min, double max) {
  const nlohmann::json* value = Read(name);
  if (value == nullptr) return {};
  std::vector<double> numbers;
  bool ok = value->is_array();
  for (size_t i = 0; ok && i < value->size(); ++i) {
    const double number = (*value)[i].is_number() ? (*value)[i].get<double>() : NAN;
    ok = number >= min && number <= max;
    numbers.push_back(number);
  }
  if (ok) return numbers;
  Refuse(name, absl::StrCat("a list of numbers, each ", NumberRange(min, max)));
  return {};
}

std::vector<std::string> ConfigFields::Strings(absl::string_view name) {
  const nlohmann::json* value = Read(name);
  if (value == nullptr) return {};
  std::vector<std::string> strings;
  bool ok = value->is_array();
  for (size_t i = 0; ok && i < value->size(); ++i) {
    ok = (*value)[i].is_string();
    if (ok) strings.push_back((*value)[i].get<std::string>());
  }
  if (!ok) {
    Refuse(name, "a list of strings");
    return {};
  }
  return strings;
}

ConfigFields ConfigFields::Object(absl::string_view name) {
  const nlohmann::json* value = Read(name);
  nlohmann::json object = nlohmann::json::object();
  if (value != nullptr && value->is_object()) {
    object = *value;
  } else if (value != nullptr) {
    Refuse(name, "an object");
  }
  return ConfigFields(path_, absl::StrCat(prefix_, name, "."), std::move(object));
}

void ConfigFields::RequireNeutral(absl::string_view name, const nlohmann::json& neutral) {
  const nlohmann::json* value = Read(name);
  if (value != nullptr && *value != neutral) {
    Refuse(name, absl::StrCat(JsonForMessage(neutral), " (nothing else is supported)"));
  }
}

void ConfigFields::Ignore(absl::Span<const absl::string_view> names) {
  for (absl::string_view name : names) read_.insert(std::string(name));
}

void ConfigFields::Refuse(absl::string_view name, absl::string_view expected) {
  const auto it = object_.find(std::string(name));
  Fail(absl::InvalidArgumentError(
      absl::StrCat(path_,
                   ": ",
                   prefix_,
                   name,
                   it == object_.end() ? " is missing" : absl::StrCat(" is ", JsonForMessage(*it)),
                   "; expected ",
                   expected)));
}

void ConfigFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

absl::Status ConfigFields::Finish(absl::string_view why_unknown_is_refused) const {
  if (!status_.ok()) return status_;
  for (const auto& [name, value] : object_.items()) {
    if (read_.contains(name) || value.is_null() || name.starts_with('_')) continue;
    return absl::InvalidArgumentError(absl::StrCat(path_,
                                                   ": ",
                                                   prefix_,
                                                   NameForMessage(name),
                                                   " is ",
                                                   JsonForMessage(value),
                                                   "; ",
                                                   why_unknown_is_refused));
  }
  return absl::OkStatus();
}

}  // namespace pagoda::engine
