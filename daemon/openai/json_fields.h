#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "daemon/server/request_fields.h"
#include "nlohmann/json.hpp"

namespace pagoda::daemon::openai {

// The members of a client's JSON object, by type. What has the wrong type or is out of range is
// reported to the checker and read as absent; null is absent; what nobody reads is ignored.
// Thread-compatible.
class JsonFields {
 public:
  // Both outlive this. `path` names the object in errors, such as "messages[2]"; empty: the root.
  JsonFields(const nlohmann::ordered_json* object, std::string path, FieldChecker* checker)
      : object_(object), path_(std::move(path)), checker_(checker) {}

  // Null when absent.
  const nlohmann::ordered_json* Find(absl::string_view name) const;
  bool Has(absl::string_view name) const { return Find(name) != nullptr; }

  absl::optional<bool> Bool(absl::string_view name) const;
  bool BoolOr(absl::string_view name, bool otherwise) const {
    return Bool(name).value_or(otherwise);
  }
  absl::optional<float> Float(absl::string_view name) const;
  // 5.0 is an integer too, as in other servers.
  absl::optional<int64_t> Integer(absl::string_view name, int64_t low, int64_t high) const;
  absl::optional<uint32_t> Count(absl::string_view name) const;
  absl::optional<std::string> String(absl::string_view name) const;
  std::string StringOr(absl::string_view name, absl::string_view otherwise) const;
  // One string, or a list of them.
  std::vector<std::string> Strings(absl::string_view name) const;
  // Token ids.
  std::vector<uint32_t> Ids(absl::string_view name) const;
  // Null when absent or something else.
  const nlohmann::ordered_json* Object(absl::string_view name) const;
  const nlohmann::ordered_json* Array(absl::string_view name) const;

  std::string PathOf(absl::string_view name) const;
  void Fail(absl::string_view name, absl::string_view description) const;
  FieldChecker* checker() const { return checker_; }

 private:
  const nlohmann::ordered_json* FindTyped(absl::string_view name,
                                          nlohmann::ordered_json::value_t type,
                                          absl::string_view expected) const;

  const nlohmann::ordered_json* const object_;
  const std::string path_;
  FieldChecker* const checker_;
};

// "a JSON string", "null", ...
std::string KindOf(const nlohmann::ordered_json& value);

// The value as a whole number in [low, high], else what is wrong with it goes to the checker.
absl::optional<int64_t> ReadInteger(const nlohmann::ordered_json& value,
                                    absl::string_view field,
                                    int64_t low,
                                    int64_t high,
                                    FieldChecker* checker);

absl::optional<float> ReadFloat(const nlohmann::ordered_json& value,
                                absl::string_view field,
                                FieldChecker* checker);

}  // namespace pagoda::daemon::openai
