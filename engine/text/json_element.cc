#include "engine/text/json_element.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"

namespace pagoda::engine {
namespace {

std::string_view Std(absl::string_view s) { return {s.data(), s.size()}; }
absl::string_view Absl(std::string_view s) { return {s.data(), s.size()}; }

absl::string_view TypeName(simdjson::dom::element value) {
  switch (value.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "an array";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::BOOL:
      return "a boolean";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

}  // namespace

absl::Status JsonElement::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(file_, ": ", path_, path_.empty() ? "" : ": ", what));
}

absl::Status JsonElement::WrongType(absl::string_view expected) const {
  return Error(absl::StrCat("expected ", expected, ", found ", TypeName(value_)));
}

absl::StatusOr<JsonElement> JsonElement::Get(absl::string_view key) const {
  if (!is_object()) return WrongType("an object");
  simdjson::dom::element member;
  if (value_[Std(key)].get(member) != simdjson::SUCCESS) {
    return Error(absl::StrCat("\"", key, "\" is missing"));
  }
  return JsonElement(member, file_, absl::StrCat(path_, path_.empty() ? "" : ".", key));
}

absl::optional<JsonElement> JsonElement::Find(absl::string_view key) const {
  absl::StatusOr<JsonElement> member = Get(key);
  if (!member.ok() || member->is_null()) return absl::nullopt;
  return *std::move(member);
}

absl::StatusOr<absl::string_view> JsonElement::String() const {
  std::string_view value;
  if (value_.get(value) != simdjson::SUCCESS) return WrongType("a string");
  return Absl(value);
}

absl::StatusOr<bool> JsonElement::Bool() const {
  bool value;
  if (value_.get(value) != simdjson::SUCCESS) return WrongType("a boolean");
  return value;
}

absl::StatusOr<int64_t> JsonElement::Integer() const {
  int64_t value;
  if (value_.get(value) != simdjson::SUCCESS) return WrongType("an integer");
  return value;
}

absl::StatusOr<std::vector<JsonElement>> JsonElement::Array() const {
  simdjson::dom::array values;
  if (value_.get(values) != simdjson::SUCCESS) return WrongType("an array");
  std::vector<JsonElement> elements;
  for (simdjson::dom::element value : values) {
    elements.emplace_back(value, file_, absl::StrCat(path_, "[", elements.size(), "]"));
  }
  return elements;
}

absl::StatusOr<bool> JsonElement::BoolOr(absl::string_view key, bool otherwise) const {
  absl::optional<JsonElement> member = Find(key);
  return member ? member->Bool() : otherwise;
}

absl::StatusOr<absl::string_view> JsonElement::StringOr(absl::string_view key,
                                                        absl::string_view otherwise) const {
  absl::optional<JsonElement> member = Find(key);
  return member ? member->String() : otherwise;
}

absl::string_view JsonElement::Type() const {
  absl::optional<JsonElement> type = Find("type");
  return type && type->is_string() ? *type->String() : absl::string_view();
}

absl::StatusOr<JsonDocument> JsonDocument::Read(const std::string& file) {
  struct stat info;
  if (stat(file.c_str(), &info) != 0)
    return absl::NotFoundError(absl::StrCat(file, ": no such file"));
  JsonDocument document(file);
  const simdjson::error_code error = document.parser_->load(file).get(document.root_);
  if (error != simdjson::SUCCESS) return document.NotJson(error);
  return document;
}

absl::StatusOr<JsonDocument> JsonDocument::Parse(absl::string_view json, absl::string_view name) {
  JsonDocument document{std::string(name)};
  const simdjson::error_code error =
      document.parser_->parse(json.data(), json.size()).get(document.root_);
  if (error != simdjson::SUCCESS) return document.NotJson(error);
  return document;
}

absl::Status JsonDocument::NotJson(int error) const {
  const char* message = simdjson::error_message(static_cast<simdjson::error_code>(error));
  return absl::InvalidArgumentError(absl::StrCat(file_, ": not valid JSON: ", message));
}

}  // namespace pagoda::engine
