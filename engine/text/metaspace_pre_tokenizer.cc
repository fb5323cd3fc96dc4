#include "engine/text/metaspace_pre_tokenizer.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(Metaspace metaspace) : metaspace_(std::move(metaspace)) {}

  absl::Status Split(absl::string_view text,
                     PreTokenizerScratch& scratch,
                     std::vector<absl::string_view>* pieces) const override {
    const absl::string_view replaced = Replace(text, scratch);
    if (!metaspace_.split) {
      pieces->push_back(replaced);
      return absl::OkStatus();
    }
    const std::string& mark = metaspace_.replacement;
    size_t begin = 0;
    // Every mark begins a piece.
    for (size_t at = 0; (at = replaced.find(mark, at)) != absl::string_view::npos;
         at += mark.size()) {
      if (begin < at) pieces->push_back(replaced.substr(begin, at - begin));
      begin = at;
    }
    if (begin < replaced.size()) pieces->push_back(replaced.substr(begin));
    return absl::OkStatus();
  }

 private:
  absl::string_view Replace(absl::string_view text, PreTokenizerScratch& scratch) const {
    const std::string& mark = metaspace_.replacement;
    const bool may_prepend =
        metaspace_.prepend == PrependScheme::kAlways ||
        (metaspace_.prepend == PrependScheme::kFirst && text.data() == scratch.text_begin);
    std::string& out = scratch.owned_text.emplace_back();
    out.reserve(text.size() + text.size() / 2 + mark.size());
    if (may_prepend && !absl::StartsWith(text, mark) && !absl::StartsWith(text, " ")) out = mark;
    for (const char c : text) {
      if (c == ' ') {
        out += mark;
      } else {
        out.push_back(c);
      }
    }
    return out;
  }

  const Metaspace metaspace_;
};

}  // namespace

absl::StatusOr<Metaspace> ReadMetaspace(const JsonElement& element) {
  Metaspace metaspace;
  PAGODA_ASSIGN_OR_RETURN(const JsonElement replacement, element.Get("replacement"));
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view mark, replacement.String());
  size_t offset = 0;
  if (!mark.empty()) NextCodePoint(mark, &offset);
  if (mark.empty() || offset != mark.size()) return replacement.Error("expected one character");
  metaspace.replacement = std::string(mark);
  PAGODA_ASSIGN_OR_RETURN(metaspace.split, element.BoolOr("split", true));
  PAGODA_ASSIGN_OR_RETURN(const bool add_prefix_space, element.BoolOr("add_prefix_space", true));
  PAGODA_ASSIGN_OR_RETURN(const absl::string_view scheme, element.StringOr("prepend_scheme", ""));
  if (scheme == "always" || (scheme.empty() && add_prefix_space)) {
    metaspace.prepend = PrependScheme::kAlways;
  } else if (scheme == "never" || scheme.empty()) {
    metaspace.prepend = PrependScheme::kNever;
  } else if (scheme == "first") {
    metaspace.prepend = PrependScheme::kFirst;
  } else {
    return element.Error(absl::StrCat(
        "prepend_scheme \"", scheme, "\": expected \"always\", \"first\" or \"never\""));
  }
  return metaspace;
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> MakeMetaspace(const JsonElement& element) {
  PAGODA_ASSIGN_OR_RETURN(Metaspace metaspace, ReadMetaspace(element));
  return std::make_unique<MetaspacePreTokenizer>(std::move(metaspace));
}

}  // namespace pagoda::engine
