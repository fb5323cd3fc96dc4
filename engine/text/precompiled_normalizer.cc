#include "engine/text/precompiled_normalizer.h"

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "engine/text/grapheme.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Graphemes of fewer bytes are looked up whole, as the reference library does.
constexpr size_t kWholeGraphemeBytes = 6;

// The fields of a unit, in the layout of Darts-clone.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

class PrecompiledNormalizer final : public Normalizer {
 public:
  explicit PrecompiledNormalizer(CharacterMap map) : map_(std::move(map)) {}

  absl::Status Apply(RegexScratch&, NormalizedText* text) const override {
    // ASCII's printable characters are in no published table, and control characters are looked at
    // below like any other.
    TextRewriter rewriter(text);
    ForEachGrapheme(text->text,
                    [&](size_t begin, size_t end) { Rewrite(*text, begin, end, &rewriter); });
    rewriter.Finish();
    return absl::OkStatus();
  }

 private:
  // A short grapheme that a sequence of the table begins becomes that sequence's replacement as a
  // whole; else each of its characters does for itself.
  void Rewrite(const NormalizedText& text, size_t begin, size_t end, TextRewriter* rewriter) const {
    const absl::string_view grapheme = absl::string_view(text.text).substr(begin, end - begin);
    if (grapheme.size() < kWholeGraphemeBytes) {
      if (const auto match = map_.Shortest(grapheme))
        return rewriter->Replace(begin, end, match->replacement);
    }
    for (size_t i = begin; i < end;) {
      const size_t first = i;
      NextCodePoint(text.text, &i);
      const auto match = map_.Shortest(absl::string_view(text.text).substr(first, i - first));
      if (match) {
        rewriter->Replace(first, i, match->replacement);
      } else {
        rewriter->Keep(first, i);
      }
    }
  }

  const CharacterMap map_;
};

}  // namespace

absl::StatusOr<CharacterMap> CharacterMap::Make(absl::string_view blob) {
  uint32_t trie_bytes = 0;
  if (blob.size() >= 4) std::memcpy(&trie_bytes, blob.data(), 4);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > blob.size() - 4)
    return absl::InvalidArgumentError("not a table of SentencePiece's normalizer");
  CharacterMap map;
  map.units_.resize(trie_bytes / 4);
  std::memcpy(map.units_.data(), blob.data() + 4, trie_bytes);
  const absl::string_view rest = blob.substr(4 + trie_bytes);
  if (!IsValidUtf8(rest) || rest.empty() || rest.back() != '\0')
    return absl::InvalidArgumentError("replacements are not zero-terminated UTF-8");
  map.replacements_ = std::string(rest);
  return map;
}

absl::optional<CharacterMap::Match> CharacterMap::Shortest(absl::string_view text) const {
  return Find(text, /*longest=*/false);
}

absl::optional<CharacterMap::Match> CharacterMap::Longest(absl::string_view text) const {
  return Find(text, /*longest=*/true);
}

absl::optional<CharacterMap::Match> CharacterMap::Find(absl::string_view text, bool longest) const {
  absl::optional<Match> found;
  size_t node = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (node >= units_.size() || Label(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= units_.size()) break;
    const size_t at = Value(units_[node]);
    if (at >= replacements_.size()) break;
    found = Match{i + 1, absl::string_view(replacements_.data() + at)};
    if (!longest) break;
  }
  return found;
}

absl::StatusOr<std::unique_ptr<Normalizer>> MakePrecompiledNormalizer(const JsonElement& element) {
  PAGODA_ASSIGN_OR_RETURN(const JsonElement member, element.Get("precompiled_charsmap"));
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view base64, member.String());
  std::string blob;
  if (!absl::Base64Unescape(base64, &blob)) return member.Error("expected base64");
  absl::StatusOr<CharacterMap> map = CharacterMap::Make(blob);
  if (!map.ok()) return member.Error(map.status().message());
  return std::make_unique<PrecompiledNormalizer>(*std::move(map));
}

}  // namespace pagoda::engine
