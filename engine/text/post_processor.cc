#include "engine/text/post_processor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// The ids of a template's special token, from the table beside the template.
absl::StatusOr<std::vector<TokenId>> SpecialTokenIds(const JsonElement& table,
                                                     absl::string_view name,
                                                     const Vocabulary& vocabulary) {
  PAGODA_ASSIGN_OR_RETURN(const JsonElement token, table.Get(name));
  PAGODA_ASSIGN_OR_RETURN(const JsonElement list, token.Get("ids"));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<JsonElement> elements, list.Array());
  std::vector<TokenId> ids;
  for (const JsonElement& element : elements) {
    PAGODA_ASSIGN_OR_RETURN(const int64_t id, element.Integer());
    if (id < 0 || id >= vocabulary.size()) {
      return element.Error(
          absl::StrCat("id ", id, " is not in the vocabulary of ", vocabulary.size()));
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::Make(const absl::optional<JsonElement>& element,
                                                  const Vocabulary& vocabulary) {
  PostProcessor processor;
  if (!element) return processor;
  PAGODA_RETURN_IF_ERROR(processor.AddStep(*element, vocabulary));
  return processor;
}

absl::Status PostProcessor::AddStep(const JsonElement& element, const Vocabulary& vocabulary) {
  const absl::string_view type = element.Type();
  if (type == "ByteLevel") return absl::OkStatus();  // moves offsets only
  if (type == "BertProcessing" || type == "RobertaProcessing") return AddPair(element, vocabulary);
  if (type == "TemplateProcessing") return AddTemplate(element, vocabulary);
  if (type != "Sequence")
    return element.Error(absl::StrCat("type \"", type, "\" is not supported"));
  PAGODA_ASSIGN_OR_RETURN(const JsonElement list, element.Get("processors"));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<JsonElement> steps, list.Array());
  for (const JsonElement& step : steps) PAGODA_RETURN_IF_ERROR(AddStep(step, vocabulary));
  return absl::OkStatus();
}

absl::Status PostProcessor::AddTemplate(const JsonElement& element, const Vocabulary& vocabulary) {
  PAGODA_ASSIGN_OR_RETURN(const JsonElement single, element.Get("single"));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<JsonElement> pieces, single.Array());
  PAGODA_ASSIGN_OR_RETURN(const JsonElement table, element.Get("special_tokens"));
  std::vector<TokenId> before, after;
  bool after_text = false;
  for (const JsonElement& piece : pieces) {
    if (absl::optional<JsonElement> sequence = piece.Find("Sequence")) {
      PAGODA_ASSIGN_OR_RETURN(const absl::string_view id, sequence->StringOr("id", ""));
      if (id != "A" || after_text) return piece.Error("expected the sequence A once");
      after_text = true;
      continue;
    }
    PAGODA_ASSIGN_OR_RETURN(const JsonElement special, piece.Get("SpecialToken"));
    PAGODA_ASSIGN_OR_RETURN(const JsonElement id, special.Get("id"));
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view name, id.String());
    PAGODA_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                            SpecialTokenIds(table, name, vocabulary));
    std::vector<TokenId>& side = after_text ? after : before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!after_text) return single.Error("expected the sequence A once");
  // A later step of a sequence goes around the earlier ones.
  prefix_.insert(prefix_.begin(), before.begin(), before.end());
  suffix_.insert(suffix_.end(), after.begin(), after.end());
  return absl::OkStatus();
}

absl::Status PostProcessor::AddPair(const JsonElement& element, const Vocabulary& vocabulary) {
  const auto add = [&](absl::string_view key, std::vector<TokenId>* side) -> absl::Status {
    PAGODA_ASSIGN_OR_RETURN(const JsonElement member, element.Get(key));
    PAGODA_ASSIGN_OR_RETURN(const std::vector<JsonElement> token, member.Array());
    if (token.size() != 2) return member.Error("expected [token, id]");
    PAGODA_ASSIGN_OR_RETURN(const int64_t id, token[1].Integer());
    if (id < 0 || id >= vocabulary.size()) return member.Error("id is not in the vocabulary");
    side->push_back(static_cast<TokenId>(id));
    return absl::OkStatus();
  };
  std::vector<TokenId> before;
  PAGODA_RETURN_IF_ERROR(add("cls", &before));
  prefix_.insert(prefix_.begin(), before.begin(), before.end());
  return add("sep", &suffix_);
}

void PostProcessor::Apply(std::vector<TokenId>* ids) const {
  // The longest end of the prefix that *ids begins with: a text that spells BOS, or whose template
  // does, has it already.
  size_t overlap = std::min(prefix_.size(), ids->size());
  while (overlap > 0 && !std::equal(prefix_.end() - overlap, prefix_.end(), ids->begin()))
    --overlap;
  ids->insert(ids->begin(), prefix_.begin(), prefix_.end() - overlap);
  ids->insert(ids->end(), suffix_.begin(), suffix_.end());
}

}  // namespace pagoda::engine
