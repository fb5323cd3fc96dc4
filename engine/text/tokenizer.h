#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/ids.h"

namespace pagoda::engine {

struct EncodeOptions {
  bool add_special_tokens =
      true;  // the post-processor may add BOS and the like; BOS is never doubled
  bool parse_special_tokens = false;  // text that spells a special token becomes it
  // Limits parse_special_tokens to text whose every byte is '\1' here, as in RenderedChat. As long
  // as the text, or empty: no limit.
  absl::string_view trusted;
};

// Text to ids and back. Immutable after Load; thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Reads a model directory's tokenizer.json, else its tokenizer.model (SentencePiece), and
  // tokenizer_config.json where there is one. NOT_FOUND when there is neither; INVALID_ARGUMENT
  // naming file and element for anything broken or not supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(absl::string_view model_dir);

  // INVALID_ARGUMENT when text is not valid UTF-8.
  virtual absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text,
                                                      const EncodeOptions& options) const = 0;
  // Whole-text decoding: valid UTF-8, U+FFFD by the maximal-subpart rule. Unknown ids decode to
  // nothing.
  virtual std::string Decode(absl::Span<const TokenId> ids, bool skip_special_tokens) const = 0;

  // One more than the largest id.
  virtual int32_t vocab_size() const = 0;
  // The bytes that a token adds to the text when it is not the first; empty for unknown ids. Lives
  // as long as the tokenizer.
  virtual absl::string_view TokenBytes(TokenId id) const = 0;
  // The same of a text's first token, which some tokenizers write without its blank.
  virtual absl::string_view FirstTokenBytes(TokenId id) const { return TokenBytes(id); }
  // What a text loses at its front, up to `max_count` times.
  struct LeadingStrip {
    absl::string_view content;
    int max_count = 0;
  };
  virtual LeadingStrip leading_strip() const { return {}; }
  virtual bool IsSpecial(TokenId id) const = 0;
  virtual absl::optional<TokenId> bos_token_id() const = 0;
  virtual absl::optional<TokenId> eos_token_id() const = 0;
};

}  // namespace pagoda::engine
