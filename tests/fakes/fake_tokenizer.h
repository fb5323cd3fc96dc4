#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/text/tokenizer.h"

namespace pagoda::engine {

// A tokenizer that only decodes: token i stands for the i-th of the given byte strings.
class FakeTokenizer : public Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view,
                                              const EncodeOptions&) const override {
    return absl::UnimplementedError("FakeTokenizer only decodes");
  }
  std::string Decode(absl::Span<const TokenId> ids, bool) const override {
    std::string text;
    for (TokenId id : ids) text += tokens_[id];
    return text;
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  absl::string_view TokenBytes(TokenId id) const override {
    return id >= 0 && id < vocab_size() ? absl::string_view(tokens_[id]) : absl::string_view();
  }
  bool IsSpecial(TokenId) const override { return false; }
  absl::optional<TokenId> bos_token_id() const override { return absl::nullopt; }
  absl::optional<TokenId> eos_token_id() const override { return absl::nullopt; }

 private:
  std::vector<std::string> tokens_;
};

}  // namespace pagoda::engine
