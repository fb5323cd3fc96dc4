#include "engine/guided/schema_compiler.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/guided/expression.h"
#include "engine/guided/json_grammar.h"
#include "engine/guided/regex_parser.h"
#include "engine/guided/schema_reader.h"
#include "engine/guided/string_format.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::guided {
namespace {

std::string Written(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

class SchemaCompiler {
 public:
  SchemaCompiler(SchemaReader* reader, Grammar* grammar)
      : reader_(*reader), grammar_(*grammar), json_(grammar) {}

  absl::Status Compile() {
    grammar_.set_root(RuleOf({reader_.root()}));
    // Rules of schemas in schemas are only named at first: no recursion, and references may go in
    // circles.
    for (size_t i = 0; i < todo_.size(); ++i) {
      const auto [schemas, rule] = todo_[i];
      PAGODA_RETURN_IF_ERROR(AddSchema(schemas, rule));
      PAGODA_RETURN_IF_ERROR(grammar_.status());
    }
    return absl::OkStatus();
  }

 private:
  RuleId RuleOf(SchemaList schemas) {
    std::sort(schemas.begin(), schemas.end());
    schemas.erase(std::unique(schemas.begin(), schemas.end()), schemas.end());
    const auto [it, is_new] = rules_.try_emplace(schemas, 0);
    if (is_new) {
      it->second = grammar_.AddRule(schemas.empty() ? "#" : reader_.PlaceOf(schemas.front()));
      todo_.emplace_back(std::move(schemas), it->second);
    }
    return it->second;
  }

  absl::Status AddSchema(const SchemaList& schemas, RuleId rule) {
    PAGODA_ASSIGN_OR_RETURN(const std::vector<SchemaShape> shapes, reader_.Shapes(schemas));
    place_ = schemas.empty() ? reader_.root() : schemas.front();
    const StateId from = grammar_.rule(rule).start, to = grammar_.rule(rule).end;
    for (const SchemaShape& shape : shapes) {
      if (shape.values.has_value()) {
        for (const Json& value : *shape.values)
          grammar_.AddEmpty(grammar_.Literal(from, Written(value)), to);
        continue;
      }
      const uint8_t types = shape.WrittenTypes();
      if ((types & kNull) != 0) grammar_.AddEmpty(grammar_.Literal(from, "null"), to);
      if ((types & kBoolean) != 0) {
        grammar_.AddEmpty(grammar_.Literal(from, "true"), to);
        grammar_.AddEmpty(grammar_.Literal(from, "false"), to);
      }
      if ((types & (kInteger | kNumber)) != 0) AddNumber(shape, (types & kNumber) == 0, from, to);
      if ((types & kString) != 0) PAGODA_RETURN_IF_ERROR(AddString(shape, from, to));
      if ((types & kArray) != 0) PAGODA_RETURN_IF_ERROR(AddArray(shape, from, to));
      if ((types & kObject) != 0) PAGODA_RETURN_IF_ERROR(AddObject(shape, from, to));
    }
    return absl::OkStatus();
  }

  void AddNumber(const SchemaShape& shape, bool integers_only, StateId from, StateId to) {
    if (!shape.range.low.has_value() && !shape.range.high.has_value()) {
      grammar_.AddCall(from, integers_only ? json_.Integer() : json_.Number(), to);
      return;
    }
    NumberRange range = shape.range;
    range.integers_only = integers_only;
    grammar_.AddEmpty(AddNumberRange(range, from, &grammar_), to);
  }

  absl::Status AddString(const SchemaShape& shape, StateId from, StateId to) {
    const bool has_length = shape.min_length > 0 || shape.max_length.has_value();
    if (has_length && (shape.pattern.has_value() || shape.format.has_value())) {
      return reader_.Error(place_,
                           absl::StrCat("minLength and maxLength are not supported together with ",
                                        shape.pattern.has_value() ? "pattern" : "format"));
    }
    if (shape.pattern.has_value() && shape.format.has_value())
      return reader_.Error(place_, "pattern and format are not supported together");
    if (shape.max_length.has_value() && *shape.max_length < shape.min_length)
      return absl::OkStatus();
    if (shape.pattern.has_value() || shape.format.has_value()) {
      const absl::string_view pattern =
          shape.pattern.has_value() ? *shape.pattern : *FormatPattern(*shape.format);
      const RegexUse use =
          shape.pattern.has_value() ? RegexUse::kSchemaPattern : RegexUse::kWholeText;
      const absl::StatusOr<ExpressionPtr> expression = ParseRegex(pattern, use, grammar_.limits());
      if (!expression.ok())
        return reader_.Error(place_, absl::StrCat("pattern: ", expression.status().message()));
      const StateId open = grammar_.Literal(from, "\"");
      const StateId end = AddExpression(**expression, Spelling::kJson, open, &grammar_);
      grammar_.AddEmpty(grammar_.Literal(end, "\""), to);
      return absl::OkStatus();
    }
    if (!has_length) {
      grammar_.AddCall(from, json_.String(), to);
      return absl::OkStatus();
    }
    StateId end = grammar_.Literal(from, "\"");
    if (shape.max_length.value_or(1) > 0) {
      end = grammar_.Call(
          end, json_.Character(), shape.min_length, shape.max_length.value_or(kUnbounded));
    }
    grammar_.AddEmpty(grammar_.Literal(end, "\""), to);
    return absl::OkStatus();
  }

  absl::Status AddArray(const SchemaShape& shape, StateId from, StateId to) {
    const auto num_prefix = static_cast<int32_t>(shape.prefix_items.size());
    const int32_t min = shape.min_items;
    int32_t max = shape.max_items.value_or(kUnbounded);
    // Beyond the listed ones only as many as must be, unless something says what they are.
    if (!shape.items.has_value() && num_prefix > 0) {
      const int32_t most = std::max(min, num_prefix);
      max = max == kUnbounded ? most : std::min(max, most);
    }
    if (max != kUnbounded && max < min) return absl::OkStatus();
    const StateId open = json_.Open(from, '[');
    const StateId end = grammar_.AddState();
    if (min == 0) grammar_.AddEmpty(open, end);
    StateId at = open;
    for (int32_t i = 0; i < num_prefix && (max == kUnbounded || i < max); ++i) {
      if (i > 0) at = json_.Comma(at);
      at = grammar_.Call(at, RuleOf(shape.prefix_items[static_cast<size_t>(i)]));
      if (i + 1 >= min) grammar_.AddEmpty(at, end);
    }
    if (max == kUnbounded || max > num_prefix) {
      const RuleId item = RuleOf(shape.items.value_or(SchemaList()));
      int32_t num_before = num_prefix;
      if (num_prefix == 0) {
        at = grammar_.Call(at, item);
        num_before = 1;
        if (min <= 1) grammar_.AddEmpty(at, end);
      }
      if (max == kUnbounded || max > num_before) {
        const RuleId more = grammar_.AddRule("more items");
        const StateId comma = json_.Comma(grammar_.rule(more).start);
        grammar_.AddCall(comma, item, grammar_.rule(more).end);
        const int32_t least = std::max(min - num_before, 1);
        grammar_.AddCall(at, more, end, least, max == kUnbounded ? max : max - num_before);
      }
    }
    grammar_.AddEmpty(json_.Close(end, ']'), to);
    return absl::OkStatus();
  }

  absl::Status AddObject(const SchemaShape& shape, StateId from, StateId to) {
    std::vector<std::pair<std::string, SchemaList>> properties = shape.properties;
    for (const std::string& name : shape.required) {
      const bool is_known = std::any_of(
          properties.begin(), properties.end(), [&](const auto& p) { return p.first == name; });
      if (!is_known) properties.emplace_back(name, shape.additional.value_or(SchemaList()));
    }
    const auto num_required = static_cast<int32_t>(shape.required.size());
    const auto num_named = static_cast<int32_t>(properties.size());
    const bool takes_others = (shape.additional.has_value() || properties.empty()) &&
                              shape.max_properties.value_or(1) > 0;
    if (shape.min_properties > num_required) {
      return reader_.Error(
          place_, "minProperties is not supported beyond the number of required properties");
    }
    const int32_t max = shape.max_properties.value_or(kUnbounded);
    if (max != kUnbounded && num_named > 0 && (max < num_named || takes_others)) {
      return reader_.Error(place_,
                           "maxProperties is not supported where properties are named, unless it "
                           "allows all of them and additionalProperties is not given");
    }
    const StateId open = json_.Open(from, '{');
    // Before property i: nothing written so far, or something.
    StateId none = grammar_.AddState(), some = grammar_.AddState();
    grammar_.AddEmpty(open, none);
    for (const auto& [name, schemas] : properties) {
      const StateId next_none = grammar_.AddState(), next_some = grammar_.AddState();
      const RuleId value = RuleOf(schemas);
      const StateId key = grammar_.AddState();
      grammar_.AddEmpty(none, key);
      grammar_.AddEmpty(json_.Comma(some), key);
      grammar_.AddCall(json_.Key(key, Written(Json(name))), value, next_some);
      if (shape.required.count(name) == 0) {
        grammar_.AddEmpty(none, next_none);
        grammar_.AddEmpty(some, next_some);
      }
      none = next_none;
      some = next_some;
    }
    if (takes_others) AddOthers(shape, properties, max, none, some);
    const StateId end = grammar_.AddState();
    grammar_.AddEmpty(none, end);
    grammar_.AddEmpty(some, end);
    grammar_.AddEmpty(json_.Close(end, '}'), to);
    return absl::OkStatus();
  }

  // Any other properties after `none` or `some`; `some` is after them.
  void AddOthers(const SchemaShape& shape,
                 const std::vector<std::pair<std::string, SchemaList>>& properties,
                 int32_t max,
                 StateId none,
                 StateId some) {
    const RuleId value = RuleOf(shape.additional.value_or(SchemaList()));
    std::vector<std::string> names;
    for (const auto& [name, schemas] : properties) names.push_back(name);
    const RuleId pair = grammar_.AddRule("a property");
    grammar_.AddCall(
        json_.KeyBeside(grammar_.rule(pair).start, names), value, grammar_.rule(pair).end);
    const StateId first = grammar_.Call(none, pair);
    grammar_.AddEmpty(first, some);
    if (max == 1) return;
    const RuleId more = grammar_.AddRule("more properties");
    grammar_.AddCall(json_.Comma(grammar_.rule(more).start), pair, grammar_.rule(more).end);
    if (max == kUnbounded) {
      grammar_.AddCall(some, more, some);
    } else {
      const StateId after = grammar_.Call(first, more, 1, max - 1);
      grammar_.AddEmpty(after, some);
    }
  }

  SchemaReader& reader_;
  Grammar& grammar_;
  JsonGrammar json_;
  std::map<SchemaList, RuleId> rules_;
  std::vector<std::pair<SchemaList, RuleId>> todo_;
  const Json* place_ = nullptr;  // of the schema at work
};

}  // namespace

absl::Status CompileSchema(absl::string_view text, Grammar* grammar) {
  PAGODA_ASSIGN_OR_RETURN(SchemaReader reader, SchemaReader::Parse(text, grammar->limits()));
  return SchemaCompiler(&reader, grammar).Compile();
}

}  // namespace pagoda::engine::guided
