#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/text/added_tokens.h"
#include "engine/text/post_processor.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/token_decoder.h"
#include "engine/text/token_model.h"
#include "engine/text/tokenizer.h"

namespace pagoda::engine {

// Added tokens, pre-tokenizer, model and post-processor in a row; a table of bytes for the way
// back. Thread-safe.
class PipelineTokenizer final : public Tokenizer {
 public:
  struct Parts {
    AddedTokenMatcher added_tokens;
    std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: text is one piece
    std::unique_ptr<TokenModel> model;
    PostProcessor post_processor;
    TokenBytesTable token_bytes;
    std::vector<bool> is_special;  // by id
    absl::optional<TokenId> bos_token_id;
    absl::optional<TokenId> eos_token_id;
    std::string chat_template;
  };
  explicit PipelineTokenizer(Parts parts);
  ~PipelineTokenizer() override;

  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text,
                                              const EncodeOptions& options) const override;
  std::string Decode(absl::Span<const TokenId> ids, bool skip_special_tokens) const override;
  int32_t vocab_size() const override { return parts_.token_bytes.size(); }
  absl::string_view TokenBytes(TokenId id) const override { return parts_.token_bytes[id]; }
  bool IsSpecial(TokenId id) const override {
    return static_cast<uint32_t>(id) < parts_.is_special.size() && parts_.is_special[id];
  }
  absl::optional<TokenId> bos_token_id() const override { return parts_.bos_token_id; }
  absl::optional<TokenId> eos_token_id() const override { return parts_.eos_token_id; }
  absl::string_view chat_template() const override { return parts_.chat_template; }

 private:
  struct Scratch;

  std::unique_ptr<Scratch> TakeScratch() const;
  void ReturnScratch(std::unique_ptr<Scratch> scratch) const;
  absl::Status EncodeSections(absl::string_view text,
                              const EncodeOptions& options,
                              Scratch& scratch,
                              std::vector<TokenId>* ids) const;

  const Parts parts_;
  mutable absl::Mutex mutex_;
  // As many as encoded at once so far; they carry the word caches from one text to the next.
  mutable std::vector<std::unique_ptr<Scratch>> idle_scratch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::engine
