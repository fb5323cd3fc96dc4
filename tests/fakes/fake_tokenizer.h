#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/text/token_decoder.h"
#include "engine/text/tokenizer.h"

namespace pagoda::engine {

// A tokenizer that only decodes: token i stands for the i-th of the given byte strings, kept as the
// real one keeps them.
class FakeTokenizer : public Tokenizer {
 public:
  explicit FakeTokenizer(const std::vector<std::string>& tokens) {
    for (const std::string& token : tokens) tokens_.Append(token);
  }

  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view,
                                              const EncodeOptions&) const override {
    return absl::UnimplementedError("FakeTokenizer only decodes");
  }
  std::string Decode(absl::Span<const TokenId> ids, bool) const override {
    std::string text;
    for (TokenId id : ids) absl::StrAppend(&text, tokens_[id]);
    return text;
  }
  int32_t vocab_size() const override { return tokens_.size(); }
  absl::string_view TokenBytes(TokenId id) const override { return tokens_[id]; }
  bool IsSpecial(TokenId) const override { return false; }
  absl::optional<TokenId> bos_token_id() const override { return absl::nullopt; }
  absl::optional<TokenId> eos_token_id() const override { return absl::nullopt; }

 private:
  TokenBytesTable tokens_;
};

}  // namespace pagoda::engine
