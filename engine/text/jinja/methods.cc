#include "engine/text/jinja/methods.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "engine/text/jinja/case_mapping.h"
#include "engine/text/jinja/filters.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Method = Result (*)(const MarkedString& text, const Arguments& arguments, Budget* budget);

// A positional string argument; empty and false where it is absent or None.
absl::StatusOr<bool> StringArgument(const Arguments& arguments, size_t position, std::string* out) {
  const Value* value = arguments.Get(position, "");
  if (value == nullptr || value->is_none()) return false;
  if (!value->is_string())
    return TemplateError(absl::StrCat("expected a string argument, got ", value->TypeName()));
  *out = value->as_string().text;
  return true;
}

// Characters that str.strip() removes: ASCII white space and the Unicode spaces that text has in
// practice.
bool IsSpace(absl::string_view character) {
  if (character.size() == 1) {
    const unsigned char c = static_cast<unsigned char>(character[0]);
    return absl::ascii_isspace(c) || (c >= 0x1c && c <= 0x1f);
  }
  static constexpr absl::string_view kSpaces[] = {"\xc2\x85",
                                                  "\xc2\xa0",
                                                  "\xe1\x9a\x80",
                                                  "\xe2\x80\x80",
                                                  "\xe2\x80\x81",
                                                  "\xe2\x80\x82",
                                                  "\xe2\x80\x83",
                                                  "\xe2\x80\x84",
                                                  "\xe2\x80\x85",
                                                  "\xe2\x80\x86",
                                                  "\xe2\x80\x87",
                                                  "\xe2\x80\x88",
                                                  "\xe2\x80\x89",
                                                  "\xe2\x80\x8a",
                                                  "\xe2\x80\xa8",
                                                  "\xe2\x80\xa9",
                                                  "\xe2\x80\xaf",
                                                  "\xe2\x81\x9f",
                                                  "\xe3\x80\x80"};
  return std::find(std::begin(kSpaces), std::end(kSpaces), character) != std::end(kSpaces);
}

size_t CharacterSize(absl::string_view text) { return CodePointOffset(text, 1); }

// Bytes at the front that are, or are not, white space.
size_t SpanOf(absl::string_view text, bool is_space) {
  size_t n = 0;
  while (n < text.size()) {
    const absl::string_view character = text.substr(n, CharacterSize(text.substr(n)));
    if (IsSpace(character) != is_space) break;
    n += character.size();
  }
  return n;
}

size_t LastCharacterSize(absl::string_view text) {
  size_t n = 1;
  while (n < text.size() && (static_cast<unsigned char>(text[text.size() - n]) & 0xc0) == 0x80) ++n;
  return n;
}

size_t WithoutTrailingSpace(absl::string_view text) {
  while (!text.empty()) {
    const size_t size = LastCharacterSize(text);
    if (!IsSpace(text.substr(text.size() - size))) break;
    text.remove_suffix(size);
  }
  return text.size();
}

Result Strip(const MarkedString& text, const Arguments& arguments, bool left, bool right) {
  std::string characters;
  PAGODA_ASSIGN_OR_RETURN(bool has_set, StringArgument(arguments, 0, &characters));
  auto strips = [&](absl::string_view character) {
    return has_set ? absl::StrContains(characters, character) : IsSpace(character);
  };
  absl::string_view rest = text.text;
  size_t begin = 0;
  while (left && !rest.empty() && strips(rest.substr(0, CharacterSize(rest)))) {
    const size_t n = CharacterSize(rest);
    begin += n;
    rest.remove_prefix(n);
  }
  while (right && !rest.empty() && strips(rest.substr(rest.size() - LastCharacterSize(rest)))) {
    rest.remove_suffix(LastCharacterSize(rest));
  }
  return Value::String(text.Substr(begin, rest.size()));
}

Result Split(const MarkedString& text, const Arguments& arguments, Budget* budget) {
  std::string separator;
  PAGODA_ASSIGN_OR_RETURN(bool has_separator, StringArgument(arguments, 0, &separator));
  if (has_separator && separator.empty()) return TemplateError("empty separator");
  const Value* limit = arguments.Get(1, "maxsplit");
  int64_t left = limit != nullptr && limit->is_int() ? limit->as_int() : -1;
  List parts;
  size_t begin = 0;
  while (begin <= text.text.size()) {
    PAGODA_RETURN_IF_ERROR(budget->Spend(1));
    size_t end, next;
    if (has_separator) {
      end = left == 0 ? std::string::npos : text.text.find(separator, begin);
      next = end == std::string::npos ? end : end + separator.size();
    } else {
      begin += SpanOf(absl::string_view(text.text).substr(begin), /*is_space=*/true);
      if (begin == text.text.size()) break;
      end = begin + SpanOf(absl::string_view(text.text).substr(begin), /*is_space=*/false);
      if (left == 0) end = begin + WithoutTrailingSpace(absl::string_view(text.text).substr(begin));
      next = left == 0 || end == text.text.size() ? std::string::npos : end;
    }
    --left;
    end = std::min(end, text.text.size());
    parts.push_back(Value::String(text.Substr(begin, end - begin)));
    if (next == std::string::npos) break;
    begin = next;
  }
  return Value::ListOf(std::move(parts));
}

Result SplitLines(const MarkedString& text, const Arguments&, Budget* budget) {
  List lines;
  size_t begin = 0;
  while (begin < text.text.size()) {
    PAGODA_RETURN_IF_ERROR(budget->Spend(1));
    size_t end = std::min(text.text.find_first_of("\r\n", begin), text.text.size());
    lines.push_back(Value::String(text.Substr(begin, end - begin)));
    if (absl::StartsWith(absl::string_view(text.text).substr(end), "\r\n")) ++end;
    begin = end + 1;
  }
  return Value::ListOf(std::move(lines));
}

// startswith and endswith: a string or a tuple of them.
Result Affix(const MarkedString& text,
             const Arguments& arguments,
             bool (*test)(absl::string_view, absl::string_view)) {
  if (arguments.positional.empty())
    return TemplateError("startswith and endswith need an argument");
  const Value& affix = arguments.positional[0];
  if (affix.is_string()) return Value::Bool(test(text.text, affix.as_string().text));
  if (!affix.is_list()) return TemplateError("startswith and endswith need a string or a tuple");
  for (const Value& one : affix.as_list()) {
    if (one.is_string() && test(text.text, one.as_string().text)) return Value::Bool(true);
  }
  return Value::Bool(false);
}

Result Replace(const MarkedString& text, const Arguments& arguments, Budget* budget) {
  if (arguments.positional.size() < 2 || !arguments.positional[0].is_string() ||
      !arguments.positional[1].is_string()) {
    return TemplateError("replace needs two strings");
  }
  const std::string& from = arguments.positional[0].as_string().text;
  const MarkedString& to = arguments.positional[1].as_string();
  const Value* limit = arguments.Get(2, "count");
  int64_t left = limit != nullptr && limit->is_int() ? limit->as_int() : -1;
  MarkedString out;
  size_t begin = 0;
  while (left != 0) {
    const size_t at = text.text.find(from, begin);
    if (at == std::string::npos) break;
    out.Append(text.Substr(begin, at - begin));
    out.Append(to);
    begin = at + from.size();
    if (from.empty()) {
      // Between all characters, as Python does.
      if (begin >= text.text.size()) break;
      const size_t n = CharacterSize(absl::string_view(text.text).substr(begin));
      out.Append(text.Substr(begin, n));
      begin += n;
    }
    --left;
    PAGODA_RETURN_IF_ERROR(budget->SpendBytes(to.text.size() + from.size()));
  }
  if (begin < text.text.size()) out.Append(text.Substr(begin, std::string::npos));
  return Value::String(std::move(out));
}

Result Find(const MarkedString& text, const Arguments& arguments, Budget*) {
  std::string needle;
  PAGODA_ASSIGN_OR_RETURN(bool given, StringArgument(arguments, 0, &needle));
  if (!given) return TemplateError("find needs a string");
  const size_t at = text.text.find(needle);
  if (at == std::string::npos) return Value::Int(-1);
  return Value::Int(
      static_cast<int64_t>(NumCodePoints(absl::string_view(text.text).substr(0, at))));
}

Result Count(const MarkedString& text, const Arguments& arguments, Budget*) {
  std::string needle;
  PAGODA_ASSIGN_OR_RETURN(bool given, StringArgument(arguments, 0, &needle));
  if (!given || needle.empty()) return TemplateError("count needs a string that is not empty");
  int64_t count = 0;
  for (size_t at = text.text.find(needle); at != std::string::npos;
       at = text.text.find(needle, at + needle.size())) {
    ++count;
  }
  return Value::Int(count);
}

Result RemoveAffix(const MarkedString& text, const Arguments& arguments, bool prefix) {
  std::string affix;
  PAGODA_ASSIGN_OR_RETURN(bool given, StringArgument(arguments, 0, &affix));
  if (!given) return TemplateError("removeprefix and removesuffix need a string");
  if (prefix && absl::StartsWith(text.text, affix))
    return Value::String(text.Substr(affix.size(), std::string::npos));
  if (!prefix && absl::EndsWith(text.text, affix)) {
    return Value::String(text.Substr(0, text.text.size() - affix.size()));
  }
  return Value::String(text);
}

Result AllBytes(const MarkedString& text, bool (*test)(unsigned char)) {
  return Value::Bool(!text.text.empty() &&
                     std::all_of(text.text.begin(), text.text.end(), [&](char c) {
                       return test(static_cast<unsigned char>(c));
                     }));
}

const absl::flat_hash_map<absl::string_view, Method>& StringMethods() {
  using T = const MarkedString&;
  using A = const Arguments&;
  static const auto* const table = new absl::flat_hash_map<absl::string_view, Method>{
      {"strip", [](T t, A a, Budget*) { return Strip(t, a, true, true); }},
      {"lstrip", [](T t, A a, Budget*) { return Strip(t, a, true, false); }},
      {"rstrip", [](T t, A a, Budget*) { return Strip(t, a, false, true); }},
      {"split", Split},
      {"splitlines", SplitLines},
      {"startswith", [](T t, A a, Budget*) { return Affix(t, a, absl::StartsWith); }},
      {"endswith", [](T t, A a, Budget*) { return Affix(t, a, absl::EndsWith); }},
      {"upper", [](T t, A, Budget*) -> Result { return Value::String(ToUpper(t)); }},
      {"lower", [](T t, A, Budget*) -> Result { return Value::String(ToLower(t)); }},
      {"title", [](T t, A, Budget*) -> Result { return Value::String(ToTitle(t)); }},
      {"capitalize", [](T t, A, Budget*) -> Result { return Value::String(Capitalized(t)); }},
      {"replace", Replace},
      {"find", Find},
      {"count", Count},
      {"removeprefix", [](T t, A a, Budget*) { return RemoveAffix(t, a, true); }},
      {"removesuffix", [](T t, A a, Budget*) { return RemoveAffix(t, a, false); }},
      {"isdigit", [](T t, A, Budget*) { return AllBytes(t, absl::ascii_isdigit); }},
      {"isalpha", [](T t, A, Budget*) { return AllBytes(t, absl::ascii_isalpha); }},
      {"isspace", [](T t, A, Budget*) { return AllBytes(t, absl::ascii_isspace); }},
      {"join",
       [](T t, A a, Budget* b) -> Result {
         if (a.positional.empty()) return TemplateError("join needs a list");
         Arguments separator;
         separator.positional.push_back(Value::String(t));
         return ApplyFilter("join", a.positional[0], separator, b);
       }},
  };
  return *table;
}

Result DictMethod(const Value& object,
                  absl::string_view name,
                  const Arguments& arguments,
                  Budget* budget) {
  const Dict& dict = object.as_dict();
  if (name == "get") {
    if (arguments.positional.empty()) return TemplateError("get needs a key");
    const Value& key = arguments.positional[0];
    if (const Value* found = key.is_string() ? dict.Find(key.as_string().text) : nullptr)
      return *found;
    const Value* fallback = arguments.Get(1, "default");
    return fallback != nullptr ? *fallback : Value::NoneValue();
  }
  if (name == "items") return ApplyFilter("items", object, {}, budget);
  if (name == "keys") return ApplyFilter("list", object, {}, budget);
  if (name == "values") {
    List values;
    for (const auto& [key, value] : dict.entries()) values.push_back(value);
    PAGODA_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(values.size())));
    return Value::ListOf(std::move(values));
  }
  return TemplateError(absl::StrCat("'dict' object has no method '", name, "'"));
}

Result ListMethod(const Value& object,
                  absl::string_view name,
                  const Arguments& arguments,
                  Budget* budget) {
  if ((name == "index" || name == "count") && arguments.positional.size() == 1) {
    PAGODA_RETURN_IF_ERROR(budget->SpendVisit(object));
    int64_t count = 0;
    const List& list = object.as_list();
    for (size_t i = 0; i < list.size(); ++i) {
      if (!Equal(list[i], arguments.positional[0])) continue;
      if (name == "index") return Value::Int(static_cast<int64_t>(i));
      ++count;
    }
    if (name == "count") return Value::Int(count);
    return TemplateError("the list does not hold that value");
  }
  return TemplateError(
      absl::StrCat("'list' object has no method '", name, "' that changes nothing"));
}

}  // namespace

Result CallMethod(const Value& object,
                  absl::string_view name,
                  const Arguments& arguments,
                  Budget* budget) {
  if (object.is_string()) {
    const auto it = StringMethods().find(name);
    if (it == StringMethods().end())
      return TemplateError(absl::StrCat("'str' object has no method '", name, "'"));
    // Most look for their argument in the text.
    const bool has_needle = !arguments.positional.empty() && arguments.positional[0].is_string();
    PAGODA_RETURN_IF_ERROR(
        budget->SpendSearch(object.as_string().text.size(),
                            has_needle ? arguments.positional[0].as_string().text.size() : 0));
    return it->second(object.as_string(), arguments, budget);
  }
  if (object.is_dict()) return DictMethod(object, name, arguments, budget);
  if (object.is_list()) return ListMethod(object, name, arguments, budget);
  if (object.is_undefined())
    return TemplateError(absl::StrCat("'", object.undefined_name(), "' is undefined"));
  return TemplateError(absl::StrCat("'", object.TypeName(), "' object has no method '", name, "'"));
}

}  // namespace pagoda::engine::jinja
