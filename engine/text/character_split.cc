#include "engine/text/character_split.h"

#include <utility>

#include "engine/text/character_class.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

enum class Role { kPart, kDropped, kAlone };

// Splits by what each character is.
template <typename RoleOf>
class CharacterSplit final : public PreTokenizer {
 public:
  explicit CharacterSplit(RoleOf role_of) : role_of_(std::move(role_of)) {}

  absl::Status Split(absl::string_view text,
                     PreTokenizerScratch&,
                     std::vector<absl::string_view>* pieces) const override {
    size_t piece_begin = 0;
    const auto end_piece = [&](size_t end) {
      if (piece_begin < end) pieces->push_back(text.substr(piece_begin, end - piece_begin));
    };
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      const Role role = role_of_(NextCodePoint(text, &i));
      if (role == Role::kPart) continue;
      end_piece(begin);
      if (role == Role::kAlone) pieces->push_back(text.substr(begin, i - begin));
      piece_begin = i;
    }
    end_piece(text.size());
    return absl::OkStatus();
  }

 private:
  const RoleOf role_of_;
};

template <typename RoleOf>
std::unique_ptr<PreTokenizer> MakeCharacterSplit(RoleOf role_of) {
  return std::make_unique<CharacterSplit<RoleOf>>(std::move(role_of));
}

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(int64_t num_characters) : num_characters_(num_characters) {}

  absl::Status Split(absl::string_view text,
                     PreTokenizerScratch&,
                     std::vector<absl::string_view>* pieces) const override {
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      for (int64_t n = 0; n < num_characters_ && i < text.size(); ++n) NextCodePoint(text, &i);
      pieces->push_back(text.substr(begin, i - begin));
    }
    return absl::OkStatus();
  }

 private:
  const int64_t num_characters_;
};

}  // namespace

std::unique_ptr<PreTokenizer> MakeBertPreTokenizer() {
  return MakeCharacterSplit([](char32_t c) {
    if (IsWhiteSpace(c)) return Role::kDropped;
    return IsBertPunctuation(c) ? Role::kAlone : Role::kPart;
  });
}

std::unique_ptr<PreTokenizer> MakeWhitespaceSplit() {
  return MakeCharacterSplit(
      [](char32_t c) { return IsWhiteSpace(c) ? Role::kDropped : Role::kPart; });
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeDelimiterSplit(const JsonElement& element) {
  PAGODA_ASSIGN_OR_RETURN(const JsonElement member, element.Get("delimiter"));
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view text, member.String());
  size_t offset = 0;
  const char32_t delimiter = text.empty() ? 0 : NextCodePoint(text, &offset);
  if (text.empty() || offset != text.size()) return member.Error("expected one character");
  return MakeCharacterSplit(
      [delimiter](char32_t c) { return c == delimiter ? Role::kDropped : Role::kPart; });
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeFixedLength(const JsonElement& element) {
  PAGODA_ASSIGN_OR_RETURN(const JsonElement member, element.Get("length"));
  PAGODA_ASSIGN_OR_RETURN(const int64_t length, member.Integer());
  if (length < 1) return member.Error("expected at least 1");
  return std::make_unique<FixedLength>(length);
}

}  // namespace pagoda::engine
