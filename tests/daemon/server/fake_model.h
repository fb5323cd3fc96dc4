#pragma once

#include <memory>
#include <string>

#include "daemon/server/served_model.h"
#include "engine/text/tokenizer.h"

namespace pagoda::daemon {

inline constexpr engine::TokenId kFakeBos = 256;
inline constexpr engine::TokenId kFakeEos = 257;
// Ids that the tokenizer has, and those that the padded embedding has.
inline constexpr int32_t kFakeTokenizerIds = 258;
inline constexpr int32_t kFakeModelIds = 272;
inline constexpr int32_t kFakeContext = 32;

// One id per byte, then "<s>" and "</s>"; adds BOS when asked to make one.
class FakeTokenizer final : public engine::Tokenizer {
 public:
  explicit FakeTokenizer(bool adds_bos) : adds_bos_(adds_bos) {}

  absl::StatusOr<std::vector<engine::TokenId>> Encode(
      absl::string_view text, const engine::EncodeOptions& options) const override;
  std::string Decode(absl::Span<const engine::TokenId> ids,
                     bool skip_special_tokens) const override;
  int32_t vocab_size() const override { return kFakeTokenizerIds; }
  absl::string_view TokenBytes(engine::TokenId id) const override;
  bool IsSpecial(engine::TokenId id) const override { return id >= kFakeBos; }
  absl::optional<engine::TokenId> bos_token_id() const override { return kFakeBos; }
  absl::optional<engine::TokenId> eos_token_id() const override { return kFakeEos; }

 private:
  const bool adds_bos_;
};

// A model named "fake" (and "alias") with that tokenizer, a context of kFakeContext and small
// limits.
ServedModel MakeFakeModel(bool adds_bos = false);

}  // namespace pagoda::daemon
