#include "engine/text/normalizer.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/text/bert_normalizer.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/character_class.h"
#include "engine/text/precompiled_normalizer.h"
#include "engine/text/unicode_normalizer.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps)
      : steps_(std::move(steps)) {}
  absl::Status Apply(RegexScratch& scratch, NormalizedText* text) const override {
    for (const auto& step : steps_) PAGODA_RETURN_IF_ERROR(step->Apply(scratch, text));
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> steps_;
};

// Puts a text before any that is not empty.
class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(RegexScratch&, NormalizedText* text) const override {
    if (text->text.empty()) return absl::OkStatus();
    text->text.insert(0, prefix_);
    // The tokenizer's own bytes are no user's.
    if (!text->trusted.empty()) text->trusted.insert(0, prefix_.size(), '\1');
    return absl::OkStatus();
  }

 private:
  const std::string prefix_;
};

// Spells every byte in the byte alphabet; the model then reads characters.
class ByteLevelNormalizer final : public Normalizer {
 public:
  absl::Status Apply(RegexScratch&, NormalizedText* text) const override {
    MapCharacters(text, [](char32_t character, std::string* out) {
      std::string bytes;
      AppendCodePoint(character, &bytes);
      for (const char byte : bytes) byte_alphabet::AppendCharacter(static_cast<uint8_t>(byte), out);
    });
    return absl::OkStatus();
  }
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(std::variant<Regex, std::string> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  absl::Status Apply(RegexScratch& scratch, NormalizedText* text) const override {
    if (const Regex* regex = std::get_if<Regex>(&pattern_))
      return ApplyRegex(*regex, scratch, text);
    const std::string& literal = std::get<std::string>(pattern_);
    size_t at = text->text.find(literal);
    if (literal.empty() || at == std::string::npos) return absl::OkStatus();
    TextRewriter rewriter(text);
    size_t last_end = 0;
    for (; at != std::string::npos; at = text->text.find(literal, last_end)) {
      rewriter.Keep(last_end, at);
      last_end = at + literal.size();
      rewriter.Replace(at, last_end, content_);
    }
    rewriter.Keep(last_end, text->text.size());
    rewriter.Finish();
    return absl::OkStatus();
  }

 private:
  absl::Status ApplyRegex(const Regex& regex, RegexScratch& scratch, NormalizedText* text) const {
    TextRewriter rewriter(text);
    size_t last_end = 0;
    PAGODA_RETURN_IF_ERROR(regex.ForEachMatch(text->text, scratch, [&](size_t begin, size_t end) {
      rewriter.Keep(last_end, begin);
      rewriter.Replace(begin, end, content_);
      last_end = end;
    }));
    rewriter.Keep(last_end, text->text.size());
    rewriter.Finish();
    return absl::OkStatus();
  }

  const std::variant<Regex, std::string> pattern_;
  const std::string content_;
};

// Takes white space from the ends.
class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(RegexScratch&, NormalizedText* text) const override {
    size_t first = text->text.size(), last = 0;  // the range without white space
    for (size_t i = 0; i < text->text.size();) {
      const size_t begin = i;
      if (IsWhiteSpace(NextCodePoint(text->text, &i))) continue;
      first = std::min(first, begin);
      last = i;
    }
    const size_t begin = left_ ? first : 0;
    const size_t end = right_ ? std::max(last, begin) : text->text.size();
    TextRewriter rewriter(text);
    rewriter.Keep(begin, end);
    rewriter.Finish();
    return absl::OkStatus();
  }

 private:
  const bool left_;
  const bool right_;
};

absl::StatusOr<std::unique_ptr<Normalizer>> MakeReplace(const JsonElement& element) {
  PAGODA_ASSIGN_OR_RETURN(const JsonElement pattern, element.Get("pattern"));
  PAGODA_ASSIGN_OR_RETURN(const JsonElement content_element, element.Get("content"));
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view content, content_element.String());
  if (absl::optional<JsonElement> literal = pattern.Find("String")) {
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view text, literal->String());
    return std::make_unique<ReplaceNormalizer>(std::string(text), std::string(content));
  }
  PAGODA_ASSIGN_OR_RETURN(const JsonElement regex, pattern.Get("Regex"));
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view text, regex.String());
  absl::StatusOr<Regex> compiled = Regex::Compile(text);
  if (!compiled.ok()) return regex.Error(compiled.status().message());
  return std::make_unique<ReplaceNormalizer>(*std::move(compiled), std::string(content));
}

absl::StatusOr<std::unique_ptr<Normalizer>> MakeSequence(const JsonElement& element) {
  PAGODA_ASSIGN_OR_RETURN(const JsonElement list, element.Get("normalizers"));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<JsonElement> children, list.Array());
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (const JsonElement& child : children) {
    PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> step, MakeNormalizer(child));
    if (step != nullptr) steps.push_back(std::move(step));
  }
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return std::move(steps.front());
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

}  // namespace

void TextRewriter::Replace(size_t begin, size_t end, absl::string_view replacement) {
  to_.text.append(replacement.data(), replacement.size());
  if (from_.trusted.empty()) return;
  const auto first = from_.trusted.begin();
  // What is put in where nothing was is the tokenizer's own.
  const bool trusted = std::all_of(first + begin, first + end, [](char c) { return c == '\1'; });
  to_.trusted.append(replacement.size(), trusted ? '\1' : '\0');
}

void TextRewriter::Keep(size_t begin, size_t end) {
  to_.text.append(from_.text, begin, end - begin);
  if (!from_.trusted.empty()) to_.trusted.append(from_.trusted, begin, end - begin);
}

void MapCharacters(NormalizedText* text,
                   absl::FunctionRef<void(char32_t character, std::string* out)> map) {
  std::string out;
  std::string marks;
  out.reserve(text->text.size());
  for (size_t i = 0; i < text->text.size();) {
    const size_t begin = i;
    map(NextCodePoint(text->text, &i), &out);
    if (!text->trusted.empty()) marks.resize(out.size(), text->trusted[begin]);
  }
  text->text = std::move(out);
  text->trusted = std::move(marks);
}

absl::StatusOr<std::unique_ptr<Normalizer>> MakeNormalizer(
    const absl::optional<JsonElement>& element) {
  if (!element) return nullptr;
  const absl::string_view type = element->Type();
  if (type == "Sequence") return MakeSequence(*element);
  if (type == "Replace") return MakeReplace(*element);
  if (type == "BertNormalizer") return MakeBertNormalizer(*element);
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Precompiled") return MakePrecompiledNormalizer(*element);
  if (type == "Prepend") {
    PAGODA_ASSIGN_OR_RETURN(const JsonElement prefix, element->Get("prepend"));
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view text, prefix.String());
    return std::make_unique<PrependNormalizer>(std::string(text));
  }
  if (type == "Strip") {
    PAGODA_ASSIGN_OR_RETURN(const bool left, element->BoolOr("strip_left", true));
    PAGODA_ASSIGN_OR_RETURN(const bool right, element->BoolOr("strip_right", true));
    return std::make_unique<StripNormalizer>(left, right);
  }
  if (std::unique_ptr<Normalizer> normalizer = MakeUnicodeNormalizer(type)) return normalizer;
  return element->Error(absl::StrCat("type \"", type, "\" is not supported"));
}

}  // namespace pagoda::engine
