#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace pagoda::engine {

// Reads the fields of one JSON object of a configuration file and remembers which were read. The
// first failure is kept and everything after it answers with neutral values, so a reader is a list
// of assignments with one check at its end. A field that is null counts as absent. Messages name
// file, field, value and what was expected. Thread-compatible.
class ConfigFields {
 public:
  // `prefix` comes before every field name in messages, such as "rope_scaling.".
  ConfigFields(std::string path, std::string prefix, nlohmann::json object);

  bool Has(absl::string_view name) const;
  // Somebody has read the field, or said that it does not matter.
  bool IsRead(absl::string_view name) const { return read_.contains(std::string(name)); }
  // The one of several spellings of a field that is present; the first where none is. Those that
  // are present must agree.
  absl::string_view Pick(const std::vector<absl::string_view>& names);

  int32_t RequiredInt(absl::string_view name, int32_t min, int32_t max);
  absl::optional<int32_t> OptionalInt(absl::string_view name, int32_t min, int32_t max);
  // Finite numbers in [min, max].
  double RequiredNumber(absl::string_view name, double min, double max);
  absl::optional<double> OptionalNumber(absl::string_view name, double min, double max);
  absl::optional<bool> OptionalBool(absl::string_view name);
  absl::optional<std::string> OptionalString(absl::string_view name);
  // An integer or a list of them; empty when absent.
  std::vector<int32_t> IntOrList(absl::string_view name, int32_t min, int32_t max);
  // A list of finite numbers in [min, max]; empty when absent.
  std::vector<double> Numbers(absl::string_view name, double min, double max);
  // A list of strings; empty when absent.
  std::vector<std::string> Strings(absl::string_view name);
  // The object `name`; an empty one, and no failure, when it is absent.
  ConfigFields Object(absl::string_view name);

  // Refuses the field unless it is absent or has `neutral`, the one value that changes nothing.
  void RequireNeutral(absl::string_view name, const nlohmann::json& neutral);
  // Marks fields as read.
  void Ignore(absl::Span<const absl::string_view> names);

  // Records that the field's value is not what was expected.
  void Refuse(absl::string_view name, absl::string_view expected);
  void Fail(absl::Status status);
  bool ok() const { return status_.ok(); }

  // The first failure; else an error for the first field that nobody read, unless it is null or its
  // name begins with
  // '_' (bookkeeping of the writer).
  absl::Status Finish(absl::string_view why_unknown_is_refused) const;

 private:
  const nlohmann::json* Read(absl::string_view name);
  const nlohmann::json* ReadRequired(absl::string_view name, absl::string_view expected);

  std::string path_;
  std::string prefix_;
  nlohmann::json object_;
  std::set<std::string> read_;
  absl::Status status_;
};

}  // namespace pagoda::engine
