#include "engine/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace pagoda::engine::jinja {

const Value* Dict::Find(absl::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &entries_[it->second].second;
}

void Dict::Set(const std::string& key, Value value) {
  const auto [it, inserted] = index_.try_emplace(key, entries_.size());
  if (inserted) {
    entries_.emplace_back(key, std::move(value));
  } else {
    entries_[it->second].second = std::move(value);
  }
}

void Extent::Add(const Extent& part) {
  num_nodes = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{num_nodes} + part.num_nodes,
                                                       std::numeric_limits<uint32_t>::max()));
  if (__builtin_add_overflow(text_bytes, part.text_bytes, &text_bytes))
    text_bytes = std::numeric_limits<uint64_t>::max();
  depth = static_cast<uint16_t>(
      std::max<int>(depth, std::min<int>(part.depth + 1, std::numeric_limits<uint16_t>::max())));
  has_namespace = has_namespace || part.has_namespace;
  has_undefined = has_undefined || part.has_undefined;
}

Value Value::String(MarkedString s) {
  const Extent extent = {.text_bytes = s.text.size()};
  Value value(std::make_shared<const MarkedString>(std::move(s)));
  value.extent_ = extent;
  return value;
}

Value Value::ListOf(List list, bool is_tuple) {
  Extent extent = {.depth = 1};
  for (const Value& item : list) extent.Add(item.extent());
  Value value(std::make_shared<const List>(std::move(list)));
  value.is_tuple_ = is_tuple;
  value.extent_ = extent;
  return value;
}

Value Value::DictOf(Dict dict) {
  Extent extent = {.depth = 1};
  for (const auto& [key, item] : dict.entries()) {
    extent.Add(item.extent());
    extent.text_bytes += key.size();
  }
  Value value(std::make_shared<const Dict>(std::move(dict)));
  value.extent_ = extent;
  return value;
}

Value Value::NamespaceOf(Dict dict) {
  Value value(std::make_shared<Namespace>(Namespace{std::move(dict)}));
  value.extent_.has_namespace = true;
  return value;
}

namespace {

Value ConvertJson(const nlohmann::ordered_json& json, int depth) {
  using Kind = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Kind::boolean:
      return Value::Bool(json.get<bool>());
    case Kind::number_integer:
      return Value::Int(json.get<int64_t>());
    case Kind::number_unsigned:
      if (json.get<uint64_t>() > std::numeric_limits<int64_t>::max())
        return Value::Float(json.get<double>());
      return Value::Int(json.get<int64_t>());
    case Kind::number_float:
      return Value::Float(json.get<double>());
    case Kind::string:
      return Value::String(MarkedString(json.get<std::string>(), false));
    case Kind::array: {
      List list;
      for (const auto& item : json) {
        if (depth <= kMaxExtent.depth) list.push_back(ConvertJson(item, depth + 1));
      }
      return Value::ListOf(std::move(list));
    }
    case Kind::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        if (depth <= kMaxExtent.depth) dict.Set(key, ConvertJson(item, depth + 1));
      }
      return Value::DictOf(std::move(dict));
    }
    default:
      return Value::NoneValue();
  }
}

}  // namespace

Value Value::FromJson(const nlohmann::ordered_json& json) { return ConvertJson(json, 0); }

bool Value::Truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_bool()) return std::get<bool>(data_);
  if (is_int()) return as_int() != 0;
  if (is_float()) return as_float() != 0;
  if (is_string()) return !as_string().text.empty();
  if (is_list()) return !as_list().empty();
  if (is_dict()) return !as_dict().entries().empty();
  return true;
}

absl::string_view Value::TypeName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_list()) return is_tuple_ ? "tuple" : "list";
  if (is_dict()) return "dict";
  if (is_namespace()) return "namespace";
  return "macro";
}

namespace {

// repr(float): the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
std::string FloatText(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  const double magnitude = std::fabs(d);
  char buffer[64];
  const auto format = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16)
                          ? std::chars_format::scientific
                          : std::chars_format::fixed;
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), d, format);
  std::string text(buffer, result.ptr);
  if (format == std::chars_format::fixed && !absl::StrContains(text, '.')) text += ".0";
  return text;
}

MarkedString QuotedRepr(const MarkedString& s) {
  // Python prefers single quotes unless the text holds one and no double quote.
  const bool use_double = absl::StrContains(s.text, '\'') && !absl::StrContains(s.text, '"');
  const char quote = use_double ? '"' : '\'';
  MarkedString out(std::string(1, quote), true);
  for (size_t i = 0; i < s.text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(s.text[i]);
    std::string piece;
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      piece = {'\\', static_cast<char>(c)};
    } else if (c == '\n') {
      piece = "\\n";
    } else if (c == '\r') {
      piece = "\\r";
    } else if (c == '\t') {
      piece = "\\t";
    } else if (c < 0x20 || c == 0x7f) {
      piece = absl::StrFormat("\\x%02x", c);
    } else {
      piece = std::string(1, static_cast<char>(c));
    }
    out.Append(MarkedString(std::move(piece), s.trusted[i] != '\0'));
  }
  out.Append(MarkedString(std::string(1, quote), true));
  return out;
}

MarkedString ListRepr(const Value& value) {
  MarkedString out(value.is_tuple() ? "(" : "[", true);
  const List& list = value.as_list();
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out.Append(MarkedString(", ", true));
    out.Append(list[i].ToRepr());
  }
  if (value.is_tuple() && list.size() == 1) out.Append(MarkedString(",", true));
  out.Append(MarkedString(value.is_tuple() ? ")" : "]", true));
  return out;
}

MarkedString DictRepr(const Dict& dict) {
  MarkedString out("{", true);
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) out.Append(MarkedString(", ", true));
    first = false;
    out.Append(QuotedRepr(MarkedString(key, false)));
    out.Append(MarkedString(": ", true));
    out.Append(value.ToRepr());
  }
  out.Append(MarkedString("}", true));
  return out;
}

}  // namespace

MarkedString Value::ToText() const {
  if (is_string()) return as_string();
  if (is_undefined()) return MarkedString();
  return ToRepr();
}

MarkedString Value::ToRepr() const {
  if (is_undefined()) return MarkedString("Undefined", true);
  if (is_none()) return MarkedString("None", true);
  if (is_bool()) return MarkedString(std::get<bool>(data_) ? "True" : "False", true);
  if (is_int()) return MarkedString(absl::StrCat(as_int()), true);
  if (is_float()) return MarkedString(FloatText(as_float()), true);
  if (is_string()) return QuotedRepr(as_string());
  if (is_list()) return ListRepr(*this);
  if (is_dict()) return DictRepr(as_dict());
  if (is_namespace()) return MarkedString("<Namespace>", true);
  return MarkedString("<Macro>", true);
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_float() == b.as_float();
    return a.as_int() == b.as_int();
  }
  if (a.is_string() && b.is_string()) return a.as_string().text == b.as_string().text;
  if (a.is_none() || a.is_undefined()) {
    return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
  }
  if (a.is_list() && b.is_list() && a.is_tuple() == b.is_tuple()) {
    const List& x = a.as_list();
    const List& y = b.as_list();
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), Equal);
  }
  if (a.is_dict() && b.is_dict()) {
    const Dict& x = a.as_dict();
    const Dict& y = b.as_dict();
    if (x.entries().size() != y.entries().size()) return false;
    for (const auto& [key, value] : x.entries()) {
      const Value* other = y.Find(key);
      if (other == nullptr || !Equal(value, *other)) return false;
    }
    return true;
  }
  return false;
}

absl::StatusOr<int> Compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const double x = a.as_float(), y = b.as_float();
    return x < y ? -1 : (x > y ? 1 : 0);
  }
  if (a.is_string() && b.is_string()) {
    const int order = a.as_string().text.compare(b.as_string().text);
    return order < 0 ? -1 : (order > 0 ? 1 : 0);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", a.TypeName(), "' and '", b.TypeName(), "' have no order"));
}

size_t CodePointOffset(absl::string_view text, size_t index) {
  size_t offset = 0;
  while (index > 0 && offset < text.size()) {
    ++offset;
    while (offset < text.size() && (static_cast<unsigned char>(text[offset]) & 0xc0) == 0x80)
      ++offset;
    --index;
  }
  return offset;
}

size_t NumCodePoints(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

namespace {

void AppendJsonString(const MarkedString& s, MarkedString* out) {
  out->Append(MarkedString("\"", true));
  for (size_t i = 0; i < s.text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(s.text[i]);
    std::string piece;
    switch (c) {
      case '"':
        piece = "\\\"";
        break;
      case '\\':
        piece = "\\\\";
        break;
      case '\n':
        piece = "\\n";
        break;
      case '\r':
        piece = "\\r";
        break;
      case '\t':
        piece = "\\t";
        break;
      case '\b':
        piece = "\\b";
        break;
      case '\f':
        piece = "\\f";
        break;
      default:
        piece = c < 0x20 ? absl::StrFormat("\\u%04x", c) : std::string(1, static_cast<char>(c));
    }
    out->Append(MarkedString(std::move(piece), s.trusted[i] != '\0'));
  }
  out->Append(MarkedString("\"", true));
}

class JsonWriter {
 public:
  JsonWriter(int indent, bool sort_keys, MarkedString* out)
      : indent_(indent), sort_keys_(sort_keys), out_(out) {}

  void Write(const Value& value, int depth) {
    if (value.is_string()) return AppendJsonString(value.as_string(), out_);
    if (value.is_none() || value.is_undefined()) return Put("null");
    if (value.is_bool()) return Put(value.Truthy() ? "true" : "false");
    if (value.is_list()) return WriteList(value.as_list(), depth);
    if (value.is_dict()) return WriteDict(value.as_dict(), depth);
    Put(value.ToText().text);
  }

 private:
  void Put(absl::string_view text) { out_->Append(MarkedString(std::string(text), true)); }
  void NewLine(int depth) {
    if (indent_ >= 0)
      Put(absl::StrCat("\n", std::string(static_cast<size_t>(indent_ * depth), ' ')));
  }
  void Separator() { Put(indent_ >= 0 ? "," : ", "); }

  void WriteList(const List& list, int depth) {
    if (list.empty()) return Put("[]");
    Put("[");
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) Separator();
      NewLine(depth + 1);
      Write(list[i], depth + 1);
    }
    NewLine(depth);
    Put("]");
  }

  void WriteDict(const Dict& dict, int depth) {
    if (dict.entries().empty()) return Put("{}");
    std::vector<const std::pair<std::string, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (sort_keys_) {
      std::sort(
          entries.begin(), entries.end(), [](auto* a, auto* b) { return a->first < b->first; });
    }
    Put("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) Separator();
      NewLine(depth + 1);
      AppendJsonString(MarkedString(entries[i]->first, false), out_);
      Put(": ");
      Write(entries[i]->second, depth + 1);
    }
    NewLine(depth);
    Put("}");
  }

  int indent_;
  bool sort_keys_;
  MarkedString* out_;
};

}  // namespace

MarkedString ToJson(const Value& value, int indent, bool sort_keys) {
  MarkedString out;
  JsonWriter(indent, sort_keys, &out).Write(value, 0);
  return out;
}

}  // namespace pagoda::engine::jinja
