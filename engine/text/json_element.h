#pragma once

#include <cstdint>
#include <memory>
#include <simdjson.h>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace pagoda::engine {

// A value in a parsed JSON file that knows its place, so that every error names file and element.
// Valid while its JsonDocument lives. Thread-compatible.
class JsonElement {
 public:
  JsonElement(simdjson::dom::element value, std::string file, std::string path)
      : value_(value), file_(std::move(file)), path_(std::move(path)) {}

  simdjson::dom::element value() const { return value_; }
  bool is_null() const { return value_.is_null(); }
  bool is_string() const { return value_.is<std::string_view>(); }
  bool is_array() const { return value_.is<simdjson::dom::array>(); }
  bool is_object() const { return value_.is<simdjson::dom::object>(); }

  // INVALID_ARGUMENT: "<file>: <element>: <what>".
  absl::Status Error(absl::string_view what) const;

  // A member that must be there.
  absl::StatusOr<JsonElement> Get(absl::string_view key) const;
  // A member that may be absent or null.
  absl::optional<JsonElement> Find(absl::string_view key) const;

  absl::StatusOr<absl::string_view> String() const;
  absl::StatusOr<bool> Bool() const;
  absl::StatusOr<int64_t> Integer() const;
  absl::StatusOr<std::vector<JsonElement>> Array() const;

  // The member's value, or `otherwise` when it is absent or null.
  absl::StatusOr<bool> BoolOr(absl::string_view key, bool otherwise) const;
  absl::StatusOr<absl::string_view> StringOr(absl::string_view key,
                                             absl::string_view otherwise) const;
  // The string member "type"; empty when this is no object or has none.
  absl::string_view Type() const;

 private:
  absl::Status WrongType(absl::string_view expected) const;

  simdjson::dom::element value_;
  std::string file_;
  std::string path_;  // "a.b[2]"; empty at the root
};

// A JSON file in memory.
class JsonDocument {
 public:
  // NOT_FOUND when there is no such file; INVALID_ARGUMENT naming it when it is not JSON.
  static absl::StatusOr<JsonDocument> Read(const std::string& file);

  // The same of text in memory; `name` stands for the file in errors.
  static absl::StatusOr<JsonDocument> Parse(absl::string_view json, absl::string_view name);

  JsonElement root() const { return JsonElement(root_, file_, ""); }

 private:
  explicit JsonDocument(std::string file)
      : parser_(std::make_unique<simdjson::dom::parser>()), file_(std::move(file)) {}
  absl::Status NotJson(int error) const;

  std::unique_ptr<simdjson::dom::parser> parser_;  // owns what root_ points to
  simdjson::dom::element root_;
  std::string file_;
};

}  // namespace pagoda::engine
