#include "engine/text/byte_level_pre_tokenizer.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/split_pre_tokenizer.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(std::unique_ptr<PreTokenizer> split, bool add_prefix_space)
      : split_(std::move(split)), add_prefix_space_(add_prefix_space) {}

  absl::Status Split(absl::string_view text,
                     PreTokenizerScratch& scratch,
                     std::vector<absl::string_view>* pieces) const override {
    if (add_prefix_space_ && !absl::StartsWith(text, " ")) {
      text = scratch.owned_text.emplace_back(absl::StrCat(" ", text));
    }
    if (split_ != nullptr) return split_->Split(text, scratch, pieces);
    pieces->push_back(text);
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<PreTokenizer> split_;  // null: the text is one piece
  const bool add_prefix_space_;
};

class ByteAlphabetAdapter final : public PreTokenizer {
 public:
  explicit ByteAlphabetAdapter(std::unique_ptr<PreTokenizer> inner) : inner_(std::move(inner)) {}

  absl::Status Split(absl::string_view text,
                     PreTokenizerScratch& scratch,
                     std::vector<absl::string_view>* pieces) const override {
    std::string spelled;
    for (const char byte : text)
      byte_alphabet::AppendCharacter(static_cast<uint8_t>(byte), &spelled);
    std::vector<absl::string_view> spelled_pieces;
    PAGODA_RETURN_IF_ERROR(inner_->Split(spelled, scratch, &spelled_pieces));

    // One character of `spelled` is one byte of `text`, so counting characters maps the pieces
    // back.
    size_t spelled_offset = 0;
    size_t offset = 0;
    const auto advance_to = [&](size_t target) {
      for (; spelled_offset < target; ++spelled_offset) {
        if ((static_cast<uint8_t>(spelled[spelled_offset]) & 0xC0) != 0x80) ++offset;
      }
      return offset;
    };
    for (const absl::string_view piece : spelled_pieces) {
      const size_t spelled_begin = static_cast<size_t>(piece.data() - spelled.data());
      const size_t begin = advance_to(spelled_begin);
      const size_t end = advance_to(spelled_begin + piece.size());
      pieces->push_back(text.substr(begin, end - begin));
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<PreTokenizer> inner_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeByteLevelPreTokenizer(
    const JsonElement& element) {
  PAGODA_ASSIGN_OR_RETURN(const bool add_prefix_space, element.BoolOr("add_prefix_space", true));
  PAGODA_ASSIGN_OR_RETURN(const bool use_regex, element.BoolOr("use_regex", true));
  if (!use_regex && !add_prefix_space) return nullptr;
  std::unique_ptr<PreTokenizer> split;
  if (use_regex) {
    PAGODA_ASSIGN_OR_RETURN(
        split, MakeRegexSplit(kGpt2Pattern, SplitBehavior::kIsolated, /*invert=*/false));
  }
  return std::make_unique<ByteLevelPreTokenizer>(std::move(split), add_prefix_space);
}

std::unique_ptr<PreTokenizer> MakeByteAlphabetAdapter(std::unique_ptr<PreTokenizer> inner) {
  return std::make_unique<ByteAlphabetAdapter>(std::move(inner));
}

}  // namespace pagoda::engine
