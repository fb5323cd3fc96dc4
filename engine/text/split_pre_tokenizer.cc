#include "engine/text/split_pre_tokenizer.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/text/character_class.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// A part of the text: a match of the pattern or what lies between two.
struct Part {
  size_t begin;
  size_t end;
  bool is_match;
};

// Finds a literal text; an empty one never matches.
struct Literal {
  std::string text;
};

// Finds characters of a class.
struct CharacterClass {
  bool (*contains)(char32_t);
};

using Pattern = std::variant<Regex, Literal, CharacterClass>;

class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  absl::Status Split(absl::string_view text,
                     PreTokenizerScratch& scratch,
                     std::vector<absl::string_view>* pieces) const override {
    if (behavior_ == SplitBehavior::kIsolated) return SplitIsolated(text, scratch, pieces);
    std::vector<Part> parts;
    size_t last_end = 0;
    const auto add = [&](size_t begin, size_t end) {
      if (last_end < begin) parts.push_back({last_end, begin, invert_});
      parts.push_back({begin, end, !invert_});
      last_end = end;
    };
    PAGODA_RETURN_IF_ERROR(ForEachMatch(text, scratch, add));
    if (last_end < text.size()) parts.push_back({last_end, text.size(), invert_});
    for (const Part& piece : Merge(parts)) {
      if (piece.begin < piece.end)
        pieces->push_back(text.substr(piece.begin, piece.end - piece.begin));
    }
    return absl::OkStatus();
  }

 private:
  // The common case, without a list in between.
  absl::Status SplitIsolated(absl::string_view text,
                             PreTokenizerScratch& scratch,
                             std::vector<absl::string_view>* pieces) const {
    size_t last_end = 0;
    const auto add = [&](size_t begin, size_t end) {
      if (last_end < begin) pieces->push_back(text.substr(last_end, begin - last_end));
      if (begin < end) pieces->push_back(text.substr(begin, end - begin));
      last_end = end;
    };
    PAGODA_RETURN_IF_ERROR(ForEachMatch(text, scratch, add));
    if (last_end < text.size()) pieces->push_back(text.substr(last_end));
    return absl::OkStatus();
  }

  absl::Status ForEachMatch(absl::string_view text,
                            PreTokenizerScratch& scratch,
                            absl::FunctionRef<void(size_t, size_t)> visit) const {
    if (const Regex* regex = std::get_if<Regex>(&pattern_))
      return regex->ForEachMatch(text, scratch.regex, visit);
    if (const CharacterClass* characters = std::get_if<CharacterClass>(&pattern_)) {
      for (size_t i = 0; i < text.size();) {
        const size_t begin = i;
        if (characters->contains(NextCodePoint(text, &i))) visit(begin, i);
      }
      return absl::OkStatus();
    }
    const std::string& literal = std::get<Literal>(pattern_).text;
    if (literal.empty()) return absl::OkStatus();
    for (size_t at = text.find(literal); at != absl::string_view::npos;
         at = text.find(literal, at + literal.size())) {
      visit(at, at + literal.size());
    }
    return absl::OkStatus();
  }

  // Parts in order to pieces in order.
  std::vector<Part> Merge(const std::vector<Part>& parts) const {
    std::vector<Part> pieces;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      const bool after_match = i > 0 && parts[i - 1].is_match;
      bool extends = false;  // the piece before
      switch (behavior_) {
        case SplitBehavior::kIsolated:
          break;
        case SplitBehavior::kRemoved:
          if (part.is_match) continue;
          break;
        case SplitBehavior::kContiguous:
          extends = i > 0 && part.is_match == after_match;
          break;
        case SplitBehavior::kMergedWithPrevious:
          extends = i > 0 && part.is_match && !after_match;
          break;
        case SplitBehavior::kMergedWithNext:
          extends = after_match && !part.is_match;
          break;
      }
      if (extends) {
        pieces.back().end = part.end;
      } else {
        pieces.push_back(part);
      }
    }
    return pieces;
  }

  const Pattern pattern_;
  const SplitBehavior behavior_;
  const bool invert_;
};

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonElement& element,
                                           absl::string_view otherwise) {
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view name, element.StringOr("behavior", otherwise));
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return element.Error(absl::StrCat("behavior \"", name, "\" is not supported"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeRegexSplit(absl::string_view pattern,
                                                             SplitBehavior behavior,
                                                             bool invert) {
  PAGODA_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  return std::make_unique<SplitPreTokenizer>(std::move(regex), behavior, invert);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeSplit(const JsonElement& element) {
  PAGODA_ASSIGN_OR_RETURN(const JsonElement pattern, element.Get("pattern"));
  PAGODA_ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(element, ""));
  PAGODA_ASSIGN_OR_RETURN(const bool invert, element.BoolOr("invert", false));
  if (absl::optional<JsonElement> literal = pattern.Find("String")) {
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view text, literal->String());
    return std::make_unique<SplitPreTokenizer>(Literal{std::string(text)}, behavior, invert);
  }
  PAGODA_ASSIGN_OR_RETURN(const JsonElement regex, pattern.Get("Regex"));
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view text, regex.String());
  absl::StatusOr<std::unique_ptr<PreTokenizer>> split = MakeRegexSplit(text, behavior, invert);
  if (!split.ok()) return regex.Error(split.status().message());
  return split;
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeDigits(const JsonElement& element) {
  PAGODA_ASSIGN_OR_RETURN(const bool individual, element.BoolOr("individual_digits", false));
  return MakeRegexSplit(
      "\\p{N}", individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> MakePunctuation(const JsonElement& element) {
  PAGODA_ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(element, "Isolated"));
  return std::make_unique<SplitPreTokenizer>(CharacterClass{IsBertPunctuation}, behavior, false);
}

}  // namespace pagoda::engine
