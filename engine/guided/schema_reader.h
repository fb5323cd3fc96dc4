#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/guided/limits.h"
#include "engine/guided/schema_shape.h"

namespace pagoda::engine::guided {

// Reads a JSON schema (2020-12): resolves $ref within the document, joins allOf, lists the choices
// of anyOf and oneOf. A keyword that cannot be honoured exactly is INVALID_ARGUMENT naming it and
// its place. Thread-compatible.
class SchemaReader {
 public:
  // INVALID_ARGUMENT where the text is no JSON, or nested too deeply.
  static absl::StatusOr<SchemaReader> Parse(absl::string_view text, const Limits& limits);

  const Json* root() const { return root_.get(); }
  // The ways to satisfy all schemas of the list; none: there is no way.
  absl::StatusOr<std::vector<SchemaShape>> Shapes(const SchemaList& schemas);
  // Where a schema stands, for errors.
  std::string PlaceOf(const Json* schema) const;
  // INVALID_ARGUMENT: "<place>: <what>".
  absl::Status Error(const Json* schema, absl::string_view what) const;

 private:
  struct Branch;

  explicit SchemaReader(const Limits& limits) : limits_(limits) {}
  void NotePlaces(const Json* value, const std::string& place);
  absl::StatusOr<const Json*> Resolve(const Json* schema, const std::string& reference) const;

  absl::Status Expand(Branch branch, std::vector<SchemaShape>* shapes);
  absl::Status ReadSchema(const Json* schema, Branch* branch);
  absl::Status ReadKeyword(const Json* schema,
                           const std::string& keyword,
                           const Json& value,
                           Branch* branch);
  absl::Status ReadType(const Json* schema, const Json& value, SchemaShape* shape) const;
  absl::Status ReadBound(const Json* schema,
                         const std::string& keyword,
                         const Json& value,
                         NumberRange* range) const;
  absl::Status ReadCount(const Json* schema,
                         const std::string& keyword,
                         const Json& value,
                         SchemaShape* shape) const;
  absl::Status ReadObjectKeywords(const Json* schema, SchemaShape* shape) const;
  absl::Status ReadArrayKeywords(const Json* schema, SchemaShape* shape) const;
  absl::Status CheckOneOf(const Json* schema, const Json& options);
  absl::StatusOr<bool> AreDisjoint(const SchemaShape& a, const SchemaShape& b, int32_t depth);
  // Keeps the listed values that the other keywords admit.
  absl::Status FilterValues(SchemaShape* shape) const;

  const Limits limits_;
  std::unique_ptr<Json> root_;
  absl::flat_hash_map<const Json*, std::string> place_of_;
  absl::flat_hash_set<const Json*> checked_one_of_;
  int64_t num_expansions_ = 0;
};

}  // namespace pagoda::engine::guided
