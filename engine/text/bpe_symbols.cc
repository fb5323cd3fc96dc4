#include "engine/text/bpe_symbols.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

constexpr char32_t kBasicPlaneEnd = 0x10000;

}  // namespace

absl::StatusOr<BpeSymbols> BpeSymbols::Make(const TokenModelParts& parts) {
  BpeSymbols symbols;
  symbols.is_byte_level_ = parts.is_byte_level;
  symbols.byte_ids_.fill(kNone);
  PAGODA_ASSIGN_OR_RETURN(const bool byte_fallback, parts.element.BoolOr("byte_fallback", false));
  for (int byte = 0; byte < 256 && (parts.is_byte_level || byte_fallback); ++byte) {
    std::string spelling;
    if (parts.is_byte_level) {
      byte_alphabet::AppendCharacter(static_cast<uint8_t>(byte), &spelling);
    } else {
      spelling = absl::StrFormat("<0x%02X>", byte);
    }
    symbols.byte_ids_[byte] = parts.vocabulary.Find(spelling).value_or(kNone);
  }
  if (!parts.is_byte_level) {
    symbols.basic_plane_.assign(kBasicPlaneEnd, kNone);
    for (TokenId id = 0; id < parts.vocabulary.size(); ++id) {
      const absl::string_view spelling = parts.vocabulary.Spelling(id).value_or("");
      size_t offset = 0;
      if (spelling.empty() || parts.is_hidden[id]) continue;
      const char32_t character = NextCodePoint(spelling, &offset);
      if (offset != spelling.size()) continue;
      if (character < kBasicPlaneEnd) {
        symbols.basic_plane_[character] = id;
      } else {
        symbols.other_planes_[character] = id;
      }
    }
  }
  PAGODA_ASSIGN_OR_RETURN(symbols.fuse_unknown_, parts.element.BoolOr("fuse_unk", false));
  if (absl::optional<JsonElement> unknown = parts.element.Find("unk_token")) {
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view spelling, unknown->String());
    symbols.unknown_id_ = parts.vocabulary.Find(spelling);
    if (!symbols.unknown_id_)
      return unknown->Error(absl::StrCat("\"", spelling, "\" is not in the vocabulary"));
  }
  return symbols;
}

absl::Status BpeSymbols::Append(absl::string_view word, std::vector<TokenId>* ids) const {
  return is_byte_level_ ? AppendBytes(word, ids) : AppendCharacters(word, ids);
}

TokenId BpeSymbols::Find(char32_t character) const {
  if (is_byte_level_) return character < 0x80 ? byte_ids_[character] : kNone;
  if (character < kBasicPlaneEnd) return basic_plane_[character];
  const auto entry = other_planes_.find(character);
  return entry == other_planes_.end() ? kNone : entry->second;
}

absl::Status BpeSymbols::AppendBytes(absl::string_view word, std::vector<TokenId>* ids) const {
  bool after_unknown = false;
  for (const char c : word) {
    const uint8_t byte = static_cast<uint8_t>(c);
    const TokenId id = byte_ids_[byte];
    if (id != kNone) {
      ids->push_back(id);
    } else if (!unknown_id_) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "text holds byte 0x%02X, which the tokenizer's vocabulary has no token for", byte));
    } else if (!fuse_unknown_ || !after_unknown) {
      ids->push_back(*unknown_id_);
    }
    after_unknown = id == kNone;
  }
  return absl::OkStatus();
}

absl::Status BpeSymbols::AppendCharacters(absl::string_view word, std::vector<TokenId>* ids) const {
  bool after_unknown = false;
  for (size_t i = 0; i < word.size();) {
    const size_t begin = i;
    const char32_t character = NextCodePoint(word, &i);
    const TokenId id = Find(character);
    if (id != kNone) {
      ids->push_back(id);
      after_unknown = false;
    } else if (FallBack(word.substr(begin, i - begin), ids)) {
      after_unknown = false;
    } else if (!unknown_id_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("text holds U+%04X, which the tokenizer's vocabulary has no token for",
                          static_cast<uint32_t>(character)));
    } else {
      if (!fuse_unknown_ || !after_unknown) ids->push_back(*unknown_id_);
      after_unknown = true;
    }
  }
  return absl::OkStatus();
}

bool BpeSymbols::FallBack(absl::string_view character, std::vector<TokenId>* ids) const {
  for (const char c : character) {
    if (byte_ids_[static_cast<uint8_t>(c)] == kNone) return false;
  }
  for (const char c : character) ids->push_back(byte_ids_[static_cast<uint8_t>(c)]);
  return true;
}

}  // namespace pagoda::engine
