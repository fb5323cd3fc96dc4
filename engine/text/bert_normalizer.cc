#include "engine/text/bert_normalizer.h"

#include "engine/text/character_class.h"
#include "engine/text/unicode_normalizer.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

struct BertOptions {
  bool clean_text = true;
  bool space_chinese = true;
  bool strip_accents = false;
  bool lowercase = true;
};

void CleanCharacter(char32_t c, std::string* out) {
  if (c == 0 || c == 0xFFFD || IsBertControl(c)) return;
  AppendCodePoint(IsWhiteSpace(c) ? U' ' : c, out);
}

// The blocks of the reference library, its gap at U+2B820 included.
bool IsChinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void SpaceChinese(char32_t c, std::string* out) {
  const bool is_chinese = IsChinese(c);
  if (is_chinese) out->push_back(' ');
  AppendCodePoint(c, out);
  if (is_chinese) out->push_back(' ');
}

void DropNonspacingMark(char32_t c, std::string* out) {
  if (!IsNonspacingMark(c)) AppendCodePoint(c, out);
}

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(BertOptions options)
      : options_(options), decompose_(MakeUnicodeNormalizer("NFD")) {}

  absl::Status Apply(RegexScratch& scratch, NormalizedText* text) const override {
    if (options_.clean_text) MapCharacters(text, CleanCharacter);
    if (options_.space_chinese) MapCharacters(text, SpaceChinese);
    if (options_.strip_accents) {
      PAGODA_RETURN_IF_ERROR(decompose_->Apply(scratch, text));
      MapCharacters(text, DropNonspacingMark);
    }
    if (options_.lowercase) MapCharacters(text, AppendLowercase);
    return absl::OkStatus();
  }

 private:
  const BertOptions options_;
  const std::unique_ptr<Normalizer> decompose_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> MakeBertNormalizer(const JsonElement& element) {
  BertOptions options;
  PAGODA_ASSIGN_OR_RETURN(options.clean_text, element.BoolOr("clean_text", true));
  PAGODA_ASSIGN_OR_RETURN(options.space_chinese, element.BoolOr("handle_chinese_chars", true));
  PAGODA_ASSIGN_OR_RETURN(options.lowercase, element.BoolOr("lowercase", true));
  // null means "as lowercase says".
  PAGODA_ASSIGN_OR_RETURN(options.strip_accents,
                          element.BoolOr("strip_accents", options.lowercase));
  return std::make_unique<BertNormalizer>(options);
}

}  // namespace pagoda::engine
