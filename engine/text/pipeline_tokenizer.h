#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "engine/text/added_tokens.h"
#include "engine/text/normalizer.h"
#include "engine/text/post_processor.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/token_decoder.h"
#include "engine/text/token_model.h"
#include "engine/text/tokenizer.h"
#include "kernels/base/mutex.h"

namespace pagoda::engine {

// Added tokens, normalizer, pre-tokenizer, model and post-processor in a row; tables of bytes for
// the way back. Thread-safe.
class PipelineTokenizer final : public Tokenizer {
 public:
  struct Parts {
    AddedTokenMatcher added_tokens;               // those that are not normalized
    std::unique_ptr<Normalizer> normalizer;       // null: text stays as it is
    AddedTokenMatcher normalized_added_tokens;    // found in normalized text
    std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: text is one piece
    std::unique_ptr<TokenModel> model;
    PostProcessor post_processor;
    DecodedVocabulary decoded;
    std::vector<bool> is_special;  // by id
    absl::optional<TokenId> bos_token_id;
    absl::optional<TokenId> eos_token_id;
  };
  explicit PipelineTokenizer(Parts parts);
  ~PipelineTokenizer() override;

  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text,
                                              const EncodeOptions& options) const override;
  std::string Decode(absl::Span<const TokenId> ids, bool skip_special_tokens) const override;
  int32_t vocab_size() const override { return parts_.decoded.bytes.size(); }
  absl::string_view TokenBytes(TokenId id) const override { return parts_.decoded.bytes[id]; }
  absl::string_view FirstTokenBytes(TokenId id) const override {
    return parts_.decoded.first_bytes ? (*parts_.decoded.first_bytes)[id] : TokenBytes(id);
  }
  LeadingStrip leading_strip() const override {
    return {parts_.decoded.stripped, parts_.decoded.max_stripped};
  }
  bool IsSpecial(TokenId id) const override {
    return static_cast<uint32_t>(id) < parts_.is_special.size() && parts_.is_special[id];
  }
  absl::optional<TokenId> bos_token_id() const override { return parts_.bos_token_id; }
  absl::optional<TokenId> eos_token_id() const override { return parts_.eos_token_id; }

 private:
  struct Scratch;

  std::unique_ptr<Scratch> TakeScratch() const;
  void ReturnScratch(std::unique_ptr<Scratch> scratch) const;
  absl::Status EncodeSections(absl::string_view text,
                              const EncodeOptions& options,
                              Scratch& scratch,
                              std::vector<TokenId>* ids) const;
  // One that is no added token. `trusted` as in EncodeOptions; begins_text: it is the text's front.
  struct Section {
    absl::string_view text;
    absl::string_view trusted;
    bool begins_text;
  };
  absl::Status EncodeSection(const Section& section,
                             const EncodeOptions& options,
                             Scratch& scratch,
                             std::vector<TokenId>* ids) const;
  // After normalization and all added tokens.
  absl::Status EncodePlain(absl::string_view text,
                           Scratch& scratch,
                           std::vector<TokenId>* ids) const;

  const Parts parts_;
  mutable Mutex mutex_;
  // As many as encoded at once so far; they carry the word caches from one text to the next.
  mutable std::vector<std::unique_ptr<Scratch>> idle_scratch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::engine
