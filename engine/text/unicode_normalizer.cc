#include "engine/text/unicode_normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include "absl/strings/str_cat.h"
#include "engine/text/character_class.h"
#include "engine/text/utf8.h"

namespace pagoda::engine {
namespace {

// ICU's own singletons.
const icu::Normalizer2* FormOf(absl::string_view type, UErrorCode* error) {
  if (type == "NFC") return icu::Normalizer2::getNFCInstance(*error);
  if (type == "NFD") return icu::Normalizer2::getNFDInstance(*error);
  if (type == "NFKC") return icu::Normalizer2::getNFKCInstance(*error);
  if (type == "NFKD") return icu::Normalizer2::getNFKDInstance(*error);
  return nullptr;
}

// The characters of Unicode 9, whose tables the tokenizer libraries normalise by: later ones stay
// as they are, as if nobody had assigned them. Null: ICU failed.
const icu::UnicodeSet* KnownCharacters() {
  static const icu::UnicodeSet* const kSet = []() -> const icu::UnicodeSet* {
    UErrorCode error = U_ZERO_ERROR;
    auto* set = new icu::UnicodeSet(UNICODE_STRING_SIMPLE("[:age=9.0:]"), error);
    return U_SUCCESS(error) ? static_cast<icu::UnicodeSet*>(set->freeze()) : nullptr;
  }();
  return kSet;
}

icu::StringPiece PieceOf(const std::string& text) {
  return icu::StringPiece(text.data(), static_cast<int32_t>(text.size()));
}

// A changed stretch is trusted where all that it came from is.
std::string CarryMarks(const NormalizedText& from, icu::Edits& edits, size_t size) {
  std::string marks(size, '\0');
  UErrorCode error = U_ZERO_ERROR;
  icu::Edits::Iterator it = edits.getFineIterator();
  while (it.next(error)) {
    const auto old_begin = static_cast<size_t>(it.sourceIndex());
    const auto new_begin = static_cast<size_t>(it.destinationIndex());
    if (!it.hasChange()) {
      marks.replace(new_begin,
                    static_cast<size_t>(it.newLength()),
                    from.trusted,
                    old_begin,
                    static_cast<size_t>(it.oldLength()));
      continue;
    }
    const absl::string_view old = absl::string_view(from.trusted).substr(old_begin, it.oldLength());
    const bool trusted = old.find('\0') == absl::string_view::npos;
    marks.replace(new_begin, it.newLength(), it.newLength(), trusted ? '\1' : '\0');
  }
  return marks;
}

class FormNormalizer final : public Normalizer {
 public:
  FormNormalizer(const icu::Normalizer2& form, const icu::UnicodeSet& known) : form_(form, known) {}

  absl::Status Apply(RegexScratch&, NormalizedText* text) const override {
    UErrorCode error = U_ZERO_ERROR;
    if (form_.isNormalizedUTF8(PieceOf(text->text), error)) return absl::OkStatus();
    std::string out;
    icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text->text.size()));
    icu::Edits edits;
    const bool marked = !text->trusted.empty();
    form_.normalizeUTF8(0, PieceOf(text->text), sink, marked ? &edits : nullptr, error);
    if (U_FAILURE(error))
      return absl::InternalError(absl::StrCat("Unicode normalisation: ", u_errorName(error)));
    if (marked) text->trusted = CarryMarks(*text, edits, out.size());
    text->text = std::move(out);
    return absl::OkStatus();
  }

 private:
  const icu::FilteredNormalizer2 form_;
};

class LowercaseNormalizer final : public Normalizer {
 public:
  absl::Status Apply(RegexScratch&, NormalizedText* text) const override {
    MapCharacters(text, AppendLowercase);
    return absl::OkStatus();
  }
};

class StripAccentsNormalizer final : public Normalizer {
 public:
  absl::Status Apply(RegexScratch&, NormalizedText* text) const override {
    MapCharacters(text, [](char32_t c, std::string* out) {
      if (!IsMark(c)) AppendCodePoint(c, out);
    });
    return absl::OkStatus();
  }
};

// SentencePiece's rules for machine translation: control characters go, separators and what is
// invisible are blanks.
void MapForTranslation(char32_t c, std::string* out) {
  const bool is_control = (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) ||
                          c == 0x7F || c == 0x8F || c == 0x9F;
  if (is_control) return;
  const bool is_blank = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                        (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                        c == 0xFEFF || c == 0xFFFD;
  AppendCodePoint(is_blank ? U' ' : c, out);
}

class NmtNormalizer final : public Normalizer {
 public:
  absl::Status Apply(RegexScratch&, NormalizedText* text) const override {
    MapCharacters(text, MapForTranslation);
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Normalizer> MakeUnicodeNormalizer(absl::string_view type) {
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
  if (type == "Nmt") return std::make_unique<NmtNormalizer>();
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* form = FormOf(type, &error);
  const icu::UnicodeSet* known = form != nullptr ? KnownCharacters() : nullptr;
  if (known == nullptr || U_FAILURE(error)) return nullptr;
  return std::make_unique<FormNormalizer>(*form, *known);
}

void AppendLowercase(char32_t character, std::string* out) {
  if (character < 0x80) {
    out->push_back(
        static_cast<char>(character >= 'A' && character <= 'Z' ? character + 32 : character));
    return;
  }
  // The one character whose lower case is two.
  if (character == 0x130) {
    out->append("i\xCC\x87");
    return;
  }
  AppendCodePoint(static_cast<char32_t>(u_tolower(static_cast<UChar32>(character))), out);
}

}  // namespace pagoda::engine
