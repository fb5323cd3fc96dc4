#include "tests/daemon/server/fake_model.h"

#include "absl/strings/str_cat.h"
#include "engine/text/utf8.h"

namespace pagoda::daemon {

using engine::TokenId;

absl::StatusOr<std::vector<TokenId>> FakeTokenizer::Encode(
    absl::string_view text, const engine::EncodeOptions& options) const {
  std::vector<TokenId> ids;
  if (adds_bos_ && options.add_special_tokens) ids.push_back(kFakeBos);
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string FakeTokenizer::Decode(absl::Span<const TokenId> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!IsSpecial(id) || !skip_special_tokens) absl::StrAppend(&bytes, TokenBytes(id));
  }
  std::string text;
  engine::AppendUtf8(bytes, &text);
  return text;
}

absl::string_view FakeTokenizer::TokenBytes(TokenId id) const {
  static const std::string* const kBytes = [] {
    auto* bytes = new std::string;
    for (int i = 0; i < 256; ++i) bytes->push_back(static_cast<char>(i));
    return bytes;
  }();
  if (id == kFakeBos) return "<s>";
  if (id == kFakeEos) return "</s>";
  return id < 256 ? absl::string_view(*kBytes).substr(static_cast<size_t>(id), 1) : "";
}

ServedModel MakeFakeModel(bool adds_bos) {
  ServedModel model;
  model.names = {"fake", "alias"};
  model.config.architecture = "LlamaForCausalLM";
  model.config.vocab_size = kFakeModelIds;
  model.tokenizer = std::make_unique<FakeTokenizer>(adds_bos);
  model.limits.set_max_logprobs(20);
  model.limits.set_max_n(4);
  model.limits.set_max_stop_strings(2);
  model.limits.set_max_stop_string_bytes(16);
  model.limits.set_max_logit_bias_entries(3);
  model.limits.set_max_bad_words(2);
  model.limits.set_max_stop_token_ids(2);
  model.max_context_tokens = kFakeContext;
  model.max_sequences = 8;
  model.kv_block_tokens = 16;
  model.num_kv_blocks = 64;
  model.max_message_bytes = size_t{1} << 20;
  DeriveModelFacts(&model);
  return model;
}

}  // namespace pagoda::daemon
