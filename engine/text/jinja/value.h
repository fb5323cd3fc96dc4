#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace pagoda::engine::jinja {

// Text whose every byte is marked: from the template (trusted, may spell control tokens) or from a
// request. Marks follow the bytes through every operation.
struct MarkedString {
  std::string text;
  std::string trusted;  // same length; '\1' for bytes of the template, '\0' for others

  MarkedString() = default;
  MarkedString(std::string t, bool is_trusted)
      : text(std::move(t)), trusted(text.size(), is_trusted ? '\1' : '\0') {}
  void Append(const MarkedString& other) {
    text += other.text;
    trusted += other.trusted;
  }
  MarkedString Substr(size_t begin, size_t count) const {
    MarkedString part;
    part.text = text.substr(begin, count);
    part.trusted = trusted.substr(begin, count);
    return part;
  }
};

class Value;
struct Node;

// All that a value holds. Copies share lists and dicts, so a few operations make a value of any
// size; what is written, compared or destroyed is as large as this says.
struct Extent {
  uint32_t num_nodes = 1;  // saturates, as the others
  uint64_t text_bytes = 0;
  uint16_t depth = 0;  // of lists and dicts; a namespace is a leaf, since it changes later
  bool has_namespace = false;
  bool has_undefined = false;

  void Add(const Extent& part);
};
// A template that makes more is refused.
inline constexpr Extent kMaxExtent = {
    .num_nodes = 500'000, .text_bytes = uint64_t{64} << 20, .depth = 100};

// Insertion-ordered, as Python's dict.
class Dict {
 public:
  const Value* Find(absl::string_view key) const;
  void Set(const std::string& key, Value value);
  const std::vector<std::pair<std::string, Value>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, Value>> entries_;
  absl::flat_hash_map<std::string, size_t> index_;
};

using List = std::vector<Value>;

// A value of the template language. Copies share lists and dicts, which are immutable but for
// namespaces.
class Value {
 public:
  struct Undefined {
    std::string name;
  };
  struct None {};
  // namespace(): the one thing that templates may assign into.
  struct Namespace {
    Dict attributes;
  };
  // A macro, with the node that defines it.
  struct Macro {
    const Node* node = nullptr;
  };

  Value() : data_(Undefined{}) { extent_.has_undefined = true; }
  static Value UndefinedNamed(std::string name) {
    Value value(Undefined{std::move(name)});
    value.extent_.has_undefined = true;
    return value;
  }
  static Value NoneValue() { return Value(None{}); }
  static Value Bool(bool b) { return Value(b); }
  static Value Int(int64_t i) { return Value(i); }
  static Value Float(double d) { return Value(d); }
  static Value String(MarkedString s);
  // Text that the template wrote.
  static Value Trusted(std::string s) { return String(MarkedString(std::move(s), true)); }
  static Value ListOf(List list, bool is_tuple = false);
  static Value DictOf(Dict dict);
  // REQUIRES: no value of `dict` holds a namespace, here and in every later assignment; namespaces
  // could hold themselves otherwise.
  static Value NamespaceOf(Dict dict);
  static Value MacroOf(const Node* node) { return Value(Macro{node}); }
  // Strings of `json` are marked untrusted. What is nested deeper than kMaxExtent is left out, and
  // the value too deep to be used.
  static Value FromJson(const nlohmann::ordered_json& json);

  bool is_undefined() const { return Is<Undefined>(); }
  bool is_none() const { return Is<None>(); }
  bool is_bool() const { return Is<bool>(); }
  bool is_int() const { return Is<int64_t>(); }
  bool is_float() const { return Is<double>(); }
  // As in Python, a bool is a number.
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_string() const { return Is<std::shared_ptr<const MarkedString>>(); }
  bool is_list() const { return Is<std::shared_ptr<const List>>(); }
  bool is_tuple() const { return is_list() && is_tuple_; }
  bool is_dict() const { return Is<std::shared_ptr<const Dict>>(); }
  bool is_namespace() const { return Is<std::shared_ptr<Namespace>>(); }
  bool is_macro() const { return Is<Macro>(); }

  // REQUIRES: the kind.
  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  int64_t as_int() const { return is_bool() ? std::get<bool>(data_) : std::get<int64_t>(data_); }
  double as_float() const {
    return is_float() ? std::get<double>(data_) : static_cast<double>(as_int());
  }
  const MarkedString& as_string() const {
    return *std::get<std::shared_ptr<const MarkedString>>(data_);
  }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& as_namespace() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const Macro& as_macro() const { return std::get<Macro>(data_); }

  const Extent& extent() const { return extent_; }
  bool Truthy() const;
  // Python's type name, for messages.
  absl::string_view TypeName() const;
  // str(value).
  MarkedString ToText() const;
  // repr(value).
  MarkedString ToRepr() const;

 private:
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }
  template <typename T>
  explicit Value(T data) : data_(std::move(data)) {}

  std::variant<Undefined,
               None,
               bool,
               int64_t,
               double,
               std::shared_ptr<const MarkedString>,
               std::shared_ptr<const List>,
               std::shared_ptr<const Dict>,
               std::shared_ptr<Namespace>,
               Macro>
      data_;
  bool is_tuple_ = false;
  Extent extent_;
};

// ==, with Python's numeric rules.
bool Equal(const Value& a, const Value& b);
// -1, 0 or 1; INVALID_ARGUMENT when the kinds have no order.
absl::StatusOr<int> Compare(const Value& a, const Value& b);

// Byte offset of code point `index` (0 to the length); text.size() beyond the end.
size_t CodePointOffset(absl::string_view text, size_t index);
size_t NumCodePoints(absl::string_view text);

// json.dumps with ensure_ascii=False as the reference library calls it. indent < 0: one line.
MarkedString ToJson(const Value& value, int indent, bool sort_keys = false);

}  // namespace pagoda::engine::jinja
