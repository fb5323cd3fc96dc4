#include "engine/text/pre_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/text/byte_level_pre_tokenizer.h"
#include "engine/text/character_split.h"
#include "engine/text/metaspace_pre_tokenizer.h"
#include "engine/text/script_split.h"
#include "engine/text/split_pre_tokenizer.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// \w+|[^\w\s]+ as the library reads it, whose \w has the two joiners.
constexpr absl::string_view kWordsAndSigns = R"([\w\x{200C}\x{200D}]+|[^\w\x{200C}\x{200D}\s]+)";

class SequencePreTokenizer final : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}

  absl::Status Split(absl::string_view text,
                     PreTokenizerScratch& scratch,
                     std::vector<absl::string_view>* pieces) const override {
    std::vector<absl::string_view> current = {text};
    std::vector<absl::string_view> next;
    for (const auto& step : steps_) {
      next.clear();
      for (const absl::string_view piece : current)
        PAGODA_RETURN_IF_ERROR(step->Split(piece, scratch, &next));
      current.swap(next);
    }
    pieces->insert(pieces->end(), current.begin(), current.end());
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeStep(const JsonElement& element) {
  const absl::string_view type = element.Type();
  if (type == "ByteLevel") return MakeByteLevelPreTokenizer(element);
  if (type == "Split") return MakeSplit(element);
  if (type == "Digits") return MakeDigits(element);
  if (type == "Punctuation") return MakePunctuation(element);
  if (type == "Metaspace") return MakeMetaspace(element);
  if (type == "BertPreTokenizer") return MakeBertPreTokenizer();
  if (type == "WhitespaceSplit") return MakeWhitespaceSplit();
  if (type == "CharDelimiterSplit") return MakeDelimiterSplit(element);
  if (type == "UnicodeScripts") return MakeScriptSplit();
  if (type == "FixedLength") return MakeFixedLength(element);
  if (type == "Whitespace")
    return MakeRegexSplit(kWordsAndSigns, SplitBehavior::kRemoved, /*invert=*/true);
  return element.Error(absl::StrCat("type \"", type, "\" is not supported"));
}

// Appends the steps of `element`, those of nested sequences in line.
absl::Status AppendSteps(const JsonElement& element,
                         std::vector<std::unique_ptr<PreTokenizer>>* steps,
                         bool* is_byte_level) {
  if (element.Type() == "Sequence") {
    PAGODA_ASSIGN_OR_RETURN(const JsonElement list, element.Get("pretokenizers"));
    PAGODA_ASSIGN_OR_RETURN(const std::vector<JsonElement> children, list.Array());
    for (const JsonElement& child : children)
      PAGODA_RETURN_IF_ERROR(AppendSteps(child, steps, is_byte_level));
    return absl::OkStatus();
  }
  const bool makes_byte_level = element.Type() == "ByteLevel";
  if (makes_byte_level && *is_byte_level)
    return element.Error("a second ByteLevel is not supported");
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> step, MakeStep(element));
  if (step != nullptr)
    steps->push_back(*is_byte_level ? MakeByteAlphabetAdapter(std::move(step)) : std::move(step));
  *is_byte_level |= makes_byte_level;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PreTokenizerChain> MakePreTokenizer(const absl::optional<JsonElement>& element) {
  PreTokenizerChain chain;
  if (!element) return chain;
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  PAGODA_RETURN_IF_ERROR(AppendSteps(*element, &steps, &chain.is_byte_level));
  if (steps.size() == 1) {
    chain.pre_tokenizer = std::move(steps.front());
  } else if (!steps.empty()) {
    chain.pre_tokenizer = std::make_unique<SequencePreTokenizer>(std::move(steps));
  }
  return chain;
}

}  // namespace pagoda::engine
