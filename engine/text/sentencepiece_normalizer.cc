#include "engine/text/sentencepiece_normalizer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "engine/text/byte_trie.h"
#include "engine/text/precompiled_normalizer.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

constexpr absl::string_view kMark = "\xE2\x96\x81";

struct Rules {
  absl::optional<CharacterMap> map = {};
  std::vector<std::string> kept = {};  // user-defined pieces
  bool add_prefix = true;
  bool remove_extra = true;
  absl::string_view blank = kMark;
};

class SentencePieceNormalizer final : public Normalizer {
 public:
  explicit SentencePieceNormalizer(Rules rules)
      : rules_(std::move(rules)), kept_(TrieOf(rules_.kept)) {}

  absl::Status Apply(RegexScratch&, NormalizedText* text) const override {
    Output out = {.with_marks = !text->trusted.empty()};
    size_t at = 0;
    if (rules_.remove_extra) {
      while (at < text->text.size()) {
        const Step step = Next(*text, at);
        if (step.replacement != " ") break;
        at += step.num_bytes;
      }
    }
    const bool is_empty = at == text->text.size();
    if (!is_empty && rules_.add_prefix) out.Append(rules_.blank, true);
    bool after_blank = rules_.remove_extra;
    while (at < text->text.size()) {
      const Step step = Next(*text, at);
      absl::string_view part = step.replacement;
      while (after_blank && absl::ConsumePrefix(&part, " ")) {
      }
      for (const char c : part) {
        const absl::string_view piece = c == ' ' ? rules_.blank : absl::string_view(&c, 1);
        out.Append(piece, step.is_trusted);
      }
      if (!part.empty()) after_blank = rules_.remove_extra && absl::EndsWith(part, " ");
      at += step.num_bytes;
    }
    if (rules_.remove_extra) {
      while (absl::EndsWith(out.text, rules_.blank)) out.Shorten(rules_.blank.size());
    }
    text->text = std::move(out.text);
    text->trusted = std::move(out.trusted);
    return absl::OkStatus();
  }

 private:
  // What the text at a place becomes.
  struct Step {
    size_t num_bytes;
    absl::string_view replacement;
    bool is_trusted;
  };
  struct Output {
    bool with_marks = false;
    std::string text = {};
    std::string trusted = {};
    void Append(absl::string_view piece, bool is_trusted) {
      text.append(piece.data(), piece.size());
      if (with_marks) trusted.append(piece.size(), is_trusted ? '\1' : '\0');
    }
    void Shorten(size_t num_bytes) {
      text.resize(text.size() - num_bytes);
      if (with_marks) trusted.resize(text.size());
    }
  };

  static ByteTrie TrieOf(const std::vector<std::string>& texts) {
    std::vector<std::pair<absl::string_view, TokenId>> spellings;
    for (const std::string& text : texts) spellings.emplace_back(text, 0);
    return ByteTrie(std::move(spellings));
  }

  Step Next(const NormalizedText& input, size_t at) const {
    const absl::string_view rest = absl::string_view(input.text).substr(at);
    Step step = {};
    if (const size_t kept = LongestKept(rest); kept > 0) {
      step = {kept, rest.substr(0, kept), true};
    } else if (const auto match = rules_.map ? rules_.map->Longest(rest) : absl::nullopt) {
      step = {match->num_bytes, match->replacement, true};
    } else {
      size_t end = 0;
      NextCodePoint(rest, &end);
      step = {end, rest.substr(0, end), true};
    }
    for (size_t i = at; i < at + step.num_bytes && !input.trusted.empty(); ++i)
      step.is_trusted = step.is_trusted && input.trusted[i] == '\1';
    return step;
  }

  size_t LongestKept(absl::string_view text) const {
    size_t longest = 0;
    ByteTrie::Node node = ByteTrie::kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      node = kept_.Child(node, static_cast<uint8_t>(text[i]));
      if (node == ByteTrie::kNoNode) break;
      if (kept_.Token(node) != ByteTrie::kNoToken) longest = i + 1;
    }
    return longest;
  }

  const Rules rules_;
  const ByteTrie kept_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> MakeSentencePieceNormalizer(
    const SentencePieceFile& file) {
  Rules rules = {.add_prefix = file.add_dummy_prefix,
                 .remove_extra = file.remove_extra_whitespaces,
                 .blank = file.escape_whitespaces ? kMark : absl::string_view(" ")};
  if (!file.character_map.empty()) {
    PAGODA_ASSIGN_OR_RETURN(rules.map, CharacterMap::Make(file.character_map));
  }
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    if (piece.type == SentencePieceFile::PieceType::kUserDefined) rules.kept.push_back(piece.text);
  }
  return std::make_unique<SentencePieceNormalizer>(std::move(rules));
}

}  // namespace pagoda::engine
