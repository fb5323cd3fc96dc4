#include "engine/text/script_split.h"

#include <cstdint>
#include <unicode/uchar.h>
#include <unicode/uscript.h>

#include "absl/types/optional.h"
#include "engine/text/utf8.h"

namespace pagoda::engine {
namespace {

constexpr char32_t kProlongedSoundMark = 0x30FC;
// Of Unicode: what is younger has no script in the library's table.
constexpr int kTableVersion = 9;

// Absent: it goes with any.
absl::optional<UScriptCode> ScriptOf(char32_t c) {
  switch (c) {
    case U' ':
      return absl::nullopt;
    case kProlongedSoundMark:
      return USCRIPT_HAN;
    // Characters whose script has changed since.
    case 0x0589:  // Armenian full stop
    case 0x061C:  // Arabic letter mark
      return USCRIPT_COMMON;
    case 0x0953:  // Devanagari accents
    case 0x0954:
      return USCRIPT_DEVANAGARI;
    default:
      break;
  }
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  if (age[0] > kTableVersion) return absl::nullopt;
  UErrorCode error = U_ZERO_ERROR;
  const UScriptCode script = uscript_getScript(static_cast<UChar32>(c), &error);
  if (U_FAILURE(error) || script == USCRIPT_UNKNOWN) return absl::nullopt;
  const bool is_kana = script == USCRIPT_HIRAGANA || script == USCRIPT_KATAKANA;
  return is_kana ? USCRIPT_HAN : script;
}

class ScriptSplit final : public PreTokenizer {
 public:
  absl::Status Split(absl::string_view text,
                     PreTokenizerScratch&,
                     std::vector<absl::string_view>* pieces) const override {
    absl::optional<UScriptCode> last;
    size_t piece_begin = 0;
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      const absl::optional<UScriptCode> script = ScriptOf(NextCodePoint(text, &i));
      if (!script || script == last) continue;
      if (last) pieces->push_back(text.substr(piece_begin, begin - piece_begin));
      piece_begin = begin;
      last = script;
    }
    if (last) pieces->push_back(text.substr(piece_begin));
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<PreTokenizer> MakeScriptSplit() { return std::make_unique<ScriptSplit>(); }

}  // namespace pagoda::engine
