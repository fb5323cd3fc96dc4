#include "engine/text/pipeline_tokenizer.h"

#include <limits>
#include <utility>

#include "engine/text/detokenizer.h"
#include "engine/text/utf8.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {

struct PipelineTokenizer::Scratch {
  PreTokenizerScratch pre_tokenizer;
  std::unique_ptr<TokenModel::Scratch> model;
  std::vector<TextSection> sections;
  std::vector<TextSection> inner_sections;
  std::vector<absl::string_view> pieces;
};

namespace {

// Lists of pieces beyond this are not kept from one text to the next.
constexpr size_t kMaxKeptPieces = 1 << 16;

}  // namespace

PipelineTokenizer::PipelineTokenizer(Parts parts) : parts_(std::move(parts)) {}
PipelineTokenizer::~PipelineTokenizer() = default;

absl::StatusOr<std::vector<TokenId>> PipelineTokenizer::Encode(absl::string_view text,
                                                               const EncodeOptions& options) const {
  if (text.size() > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError("text is longer than 2 GiB");
  }
  PAGODA_CHECK(options.trusted.empty() || options.trusted.size() == text.size());
  if (!IsValidUtf8(text)) return absl::InvalidArgumentError("text is not valid UTF-8");
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 8);
  std::unique_ptr<Scratch> scratch = TakeScratch();
  const absl::Status status = EncodeSections(text, options, *scratch, &ids);
  ReturnScratch(std::move(scratch));
  if (!status.ok()) return status;
  if (options.add_special_tokens) parts_.post_processor.Apply(&ids);
  return ids;
}

absl::Status PipelineTokenizer::EncodeSections(absl::string_view text,
                                               const EncodeOptions& options,
                                               Scratch& scratch,
                                               std::vector<TokenId>* ids) const {
  PAGODA_RETURN_IF_ERROR(parts_.added_tokens.Split(
      {.text = text, .match_special = options.parse_special_tokens, .trusted = options.trusted},
      scratch.pre_tokenizer.regex,
      &scratch.sections));
  for (const TextSection& section : scratch.sections) {
    if (section.token) {
      ids->push_back(*section.token);
      continue;
    }
    const size_t begin = static_cast<size_t>(section.text.data() - text.data());
    const absl::string_view trusted = options.trusted.empty()
                                          ? options.trusted
                                          : options.trusted.substr(begin, section.text.size());
    PAGODA_RETURN_IF_ERROR(
        EncodeSection({.text = section.text, .trusted = trusted, .begins_text = begin == 0},
                      options,
                      scratch,
                      ids));
  }
  return absl::OkStatus();
}

absl::Status PipelineTokenizer::EncodeSection(const Section& section,
                                              const EncodeOptions& options,
                                              Scratch& scratch,
                                              std::vector<TokenId>* ids) const {
  AddedTokenMatcher::Input input = {.text = section.text,
                                    .match_special = options.parse_special_tokens,
                                    .trusted = section.trusted};
  NormalizedText normalized;
  if (parts_.normalizer != nullptr) {
    normalized = {std::string(section.text), std::string(section.trusted)};
    PAGODA_RETURN_IF_ERROR(parts_.normalizer->Apply(scratch.pre_tokenizer.regex, &normalized));
    input.text = normalized.text;
    input.trusted = normalized.trusted;
  }
  PAGODA_RETURN_IF_ERROR(parts_.normalized_added_tokens.Split(
      input, scratch.pre_tokenizer.regex, &scratch.inner_sections));
  for (const TextSection& inner : scratch.inner_sections) {
    if (inner.token) {
      ids->push_back(*inner.token);
      continue;
    }
    const bool begins_text = section.begins_text && inner.text.data() == input.text.data();
    scratch.pre_tokenizer.text_begin = begins_text ? inner.text.data() : nullptr;
    PAGODA_RETURN_IF_ERROR(EncodePlain(inner.text, scratch, ids));
  }
  return absl::OkStatus();
}

absl::Status PipelineTokenizer::EncodePlain(absl::string_view text,
                                            Scratch& scratch,
                                            std::vector<TokenId>* ids) const {
  scratch.pieces.clear();
  scratch.pre_tokenizer.owned_text.clear();
  if (parts_.pre_tokenizer != nullptr) {
    PAGODA_RETURN_IF_ERROR(
        parts_.pre_tokenizer->Split(text, scratch.pre_tokenizer, &scratch.pieces));
  } else {
    scratch.pieces.push_back(text);
  }
  for (const absl::string_view piece : scratch.pieces)
    PAGODA_RETURN_IF_ERROR(parts_.model->Encode(piece, *scratch.model, ids));
  return absl::OkStatus();
}

std::string PipelineTokenizer::Decode(absl::Span<const TokenId> ids,
                                      bool skip_special_tokens) const {
  std::string text;
  Detokenizer detokenizer(this, skip_special_tokens, /*begins_text=*/true);
  for (const TokenId id : ids) detokenizer.Append(id, &text);
  detokenizer.Finish(&text);
  return text;
}

std::unique_ptr<PipelineTokenizer::Scratch> PipelineTokenizer::TakeScratch() const {
  {
    MutexLock lock(&mutex_);
    if (!idle_scratch_.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(idle_scratch_.back());
      idle_scratch_.pop_back();
      return scratch;
    }
  }
  auto scratch = std::make_unique<Scratch>();
  scratch->model = parts_.model->MakeScratch();
  return scratch;
}

void PipelineTokenizer::ReturnScratch(std::unique_ptr<Scratch> scratch) const {
  scratch->pre_tokenizer.owned_text.clear();
  scratch->sections.clear();
  scratch->inner_sections.clear();
  if (scratch->pieces.capacity() > kMaxKeptPieces) scratch->pieces = {};
  scratch->model->Trim();
  MutexLock lock(&mutex_);
  idle_scratch_.push_back(std::move(scratch));
}

}  // namespace pagoda::engine
