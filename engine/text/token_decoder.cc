#include "engine/text/token_decoder.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/metaspace_pre_tokenizer.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Rewrites the text of one token.
class Step {
 public:
  virtual ~Step() = default;
  virtual void Apply(bool is_first, std::string* text) const = 0;
  virtual bool ChangesFirst() const { return false; }
};

class ByteLevelStep final : public Step {
 public:
  void Apply(bool, std::string* text) const override {
    std::string bytes;
    // A token with a character outside the alphabet, such as an added one with a space in it,
    // stands for its spelling.
    if (byte_alphabet::AppendBytes(*text, &bytes)) *text = std::move(bytes);
  }
};

class ReplaceStep final : public Step {
 public:
  ReplaceStep(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  void Apply(bool, std::string* text) const override {
    *text = absl::StrReplaceAll(*text, {{from_, to_}});
  }

 private:
  const std::string from_;
  const std::string to_;
};

// "<0x0A>" is a byte.
class ByteFallbackStep final : public Step {
 public:
  void Apply(bool, std::string* text) const override {
    uint32_t byte = 0;
    if (text->size() == 6 && absl::StartsWith(*text, "<0x") && text->back() == '>' &&
        absl::SimpleHexAtoi(text->substr(3, 2), &byte))
      text->assign(1, static_cast<char>(byte));
  }
};

class StripStep final : public Step {
 public:
  StripStep(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void Apply(bool, std::string* text) const override {
    for (int64_t i = 0; i < start_ && absl::StartsWith(*text, content_); ++i)
      text->erase(0, content_.size());
    for (int64_t i = 0; i < stop_ && absl::EndsWith(*text, content_); ++i)
      text->resize(text->size() - content_.size());
  }

 private:
  const std::string content_;
  const int64_t start_;
  const int64_t stop_;
};

// The replacement is a blank, and nothing in the first token where text gets one prepended.
class MetaspaceStep final : public Step {
 public:
  explicit MetaspaceStep(Metaspace metaspace) : metaspace_(std::move(metaspace)) {}
  void Apply(bool is_first, std::string* text) const override {
    const bool drops = is_first && ChangesFirst();
    *text = absl::StrReplaceAll(*text, {{metaspace_.replacement, drops ? "" : " "}});
  }
  bool ChangesFirst() const override { return metaspace_.prepend != PrependScheme::kNever; }

 private:
  const Metaspace metaspace_;
};

class WordPieceStep final : public Step {
 public:
  WordPieceStep(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void Apply(bool is_first, std::string* text) const override {
    if (!is_first) {
      if (absl::StartsWith(*text, prefix_)) {
        text->erase(0, prefix_.size());
      } else {
        text->insert(0, " ");
      }
    }
    if (!cleanup_) return;
    constexpr std::pair<const char*, const char*> kCleanups[] = {{" .", "."},
                                                                 {" ?", "?"},
                                                                 {" !", "!"},
                                                                 {" ,", ","},
                                                                 {" ' ", "'"},
                                                                 {" n't", "n't"},
                                                                 {" 'm", "'m"},
                                                                 {" do not", " don't"},
                                                                 {" 's", "'s"},
                                                                 {" 've", "'ve"},
                                                                 {" 're", "'re"}};
    for (const auto& [from, to] : kCleanups) *text = absl::StrReplaceAll(*text, {{from, to}});
  }
  bool ChangesFirst() const override { return true; }

 private:
  const std::string prefix_;
  const bool cleanup_;
};

// What joins tokens where there is no decoder.
class JoinStep final : public Step {
 public:
  void Apply(bool is_first, std::string* text) const override {
    if (!is_first) text->insert(0, " ");
  }
  bool ChangesFirst() const override { return true; }
};

// The steps of a decoder, read from its element.
class Chain {
 public:
  absl::Status Add(const JsonElement& element) {
    const absl::string_view type = element.Type();
    if (type == "Sequence") return AddSequence(element);
    if (type == "Fuse") return is_fused_ = true, absl::OkStatus();
    if (type == "Strip") return AddStrip(element);
    if (is_fused_)
      return element.Error(absl::StrCat("type \"", type, "\" after \"Fuse\" is not supported"));
    if (type == "ByteLevel") return Push(std::make_unique<ByteLevelStep>());
    if (type == "ByteFallback") return Push(std::make_unique<ByteFallbackStep>());
    if (type == "Replace") return AddReplace(element);
    if (type == "Metaspace") {
      PAGODA_ASSIGN_OR_RETURN(Metaspace metaspace, ReadMetaspace(element));
      return Push(std::make_unique<MetaspaceStep>(std::move(metaspace)));
    }
    if (type == "WordPiece") {
      PAGODA_ASSIGN_OR_RETURN(const absl::string_view prefix, element.StringOr("prefix", "##"));
      PAGODA_ASSIGN_OR_RETURN(const bool cleanup, element.BoolOr("cleanup", true));
      return Push(std::make_unique<WordPieceStep>(std::string(prefix), cleanup));
    }
    return element.Error(absl::StrCat("type \"", type, "\" is not supported"));
  }

  absl::Status Push(std::unique_ptr<Step> step) {
    steps_.push_back(std::move(step));
    return absl::OkStatus();
  }

  TokenBytesTable Decode(const Vocabulary& vocabulary, bool is_first) const {
    TokenBytesTable table;
    std::string text;
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
      const absl::optional<absl::string_view> spelling = vocabulary.Spelling(id);
      text.clear();
      if (spelling) {
        text.assign(spelling->data(), spelling->size());
        for (const auto& step : steps_) step->Apply(is_first, &text);
      }
      table.Append(text);
    }
    return table;
  }

  DecodedVocabulary Finish(const Vocabulary& vocabulary) const {
    DecodedVocabulary decoded = {.bytes = Decode(vocabulary, false)};
    bool first_differs = false;
    for (const auto& step : steps_) first_differs = first_differs || step->ChangesFirst();
    if (first_differs) decoded.first_bytes = Decode(vocabulary, true);
    decoded.stripped = stripped_;
    decoded.max_stripped = max_stripped_;
    return decoded;
  }

 private:
  absl::Status AddSequence(const JsonElement& element) {
    PAGODA_ASSIGN_OR_RETURN(const JsonElement list, element.Get("decoders"));
    PAGODA_ASSIGN_OR_RETURN(const std::vector<JsonElement> children, list.Array());
    for (const JsonElement& child : children) PAGODA_RETURN_IF_ERROR(Add(child));
    return absl::OkStatus();
  }

  absl::Status AddReplace(const JsonElement& element) {
    PAGODA_ASSIGN_OR_RETURN(const JsonElement pattern, element.Get("pattern"));
    PAGODA_ASSIGN_OR_RETURN(const JsonElement literal, pattern.Get("String"));
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view from, literal.String());
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view to, element.StringOr("content", ""));
    if (from.empty()) return literal.Error("expected a text that is not empty");
    return Push(std::make_unique<ReplaceStep>(std::string(from), std::string(to)));
  }

  absl::Status AddStrip(const JsonElement& element) {
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view content, element.StringOr("content", ""));
    const auto count = [&](absl::string_view key) -> absl::StatusOr<int64_t> {
      PAGODA_ASSIGN_OR_RETURN(const JsonElement member, element.Get(key));
      PAGODA_ASSIGN_OR_RETURN(const int64_t value, member.Integer());
      if (value < 0 || value > 1000) return member.Error("expected 0 to 1000");
      return value;
    };
    PAGODA_ASSIGN_OR_RETURN(const int64_t start, count("start"));
    PAGODA_ASSIGN_OR_RETURN(const int64_t stop, count("stop"));
    if (content.empty()) return element.Error("content: expected a character");
    if (!is_fused_) return Push(std::make_unique<StripStep>(std::string(content), start, stop));
    // The end of a text is not known while it streams.
    if (stop > 0) return element.Error("\"stop\" after \"Fuse\" is not supported");
    if (start > 0 && max_stripped_ > 0)
      return element.Error("a second \"Strip\" after \"Fuse\" is not supported");
    if (start == 0) return absl::OkStatus();
    stripped_ = std::string(content);
    max_stripped_ = static_cast<int>(start);
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<Step>> steps_;
  bool is_fused_ = false;
  std::string stripped_;
  int max_stripped_ = 0;
};

}  // namespace

absl::StatusOr<DecodedVocabulary> DecodeVocabulary(const absl::optional<JsonElement>& decoder,
                                                   const Vocabulary& vocabulary) {
  Chain chain;
  PAGODA_RETURN_IF_ERROR(decoder ? chain.Add(*decoder) : chain.Push(std::make_unique<JoinStep>()));
  return chain.Finish(vocabulary);
}

}  // namespace pagoda::engine
