#include "engine/text/tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/text/added_tokens.h"
#include "engine/text/normalizer.h"
#include "engine/text/pipeline_tokenizer.h"
#include "engine/text/tokenizer_config.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// The id of a token that tokenizer_config.json names; absent when the vocabulary does not have it.
absl::optional<TokenId> FindToken(const Vocabulary& vocabulary,
                                  absl::string_view key,
                                  const absl::optional<std::string>& spelling) {
  if (!spelling) return absl::nullopt;
  const absl::optional<TokenId> id = vocabulary.Find(*spelling);
  if (!id) {
    LogWarning("tokenizer_config.json: %s \"%s\" is not in the vocabulary and is left out",
               std::string(key),
               *spelling);
  }
  return id;
}

absl::StatusOr<PipelineTokenizer::Parts> BuildParts(const JsonElement& root,
                                                    const TokenizerConfig& config) {
  PAGODA_RETURN_IF_ERROR(CheckNormalizer(root.Find("normalizer")));
  PAGODA_ASSIGN_OR_RETURN(PreTokenizerChain chain, MakePreTokenizer(root.Find("pre_tokenizer")));
  PAGODA_ASSIGN_OR_RETURN(const JsonElement model_element, root.Get("model"));
  PAGODA_ASSIGN_OR_RETURN(const JsonElement vocab_element, model_element.Get("vocab"));
  PAGODA_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Read(vocab_element));
  PAGODA_ASSIGN_OR_RETURN(const std::vector<AddedToken> added_tokens, ReadAddedTokens(root));
  for (const AddedToken& token : added_tokens) {
    PAGODA_RETURN_IF_ERROR(vocabulary.Add(token.content, token.id, root));
  }
  std::vector<bool> is_special(vocabulary.size());
  for (const AddedToken& token : added_tokens)
    is_special[token.id] = is_special[token.id] || token.is_special;

  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<TokenModel> model,
                          MakeTokenModel({.element = model_element,
                                          .vocabulary = vocabulary,
                                          .is_special = is_special,
                                          .is_byte_level = chain.is_byte_level}));
  PAGODA_ASSIGN_OR_RETURN(AddedTokenMatcher matcher, AddedTokenMatcher::Make(added_tokens));
  PAGODA_ASSIGN_OR_RETURN(PostProcessor post_processor,
                          PostProcessor::Make(root.Find("post_processor"), vocabulary));
  PAGODA_ASSIGN_OR_RETURN(const JsonElement decoder, root.Get("decoder"));
  PAGODA_ASSIGN_OR_RETURN(TokenBytesTable token_bytes, DecodeVocabulary(decoder, vocabulary));
  return PipelineTokenizer::Parts{
      .added_tokens = std::move(matcher),
      .pre_tokenizer = std::move(chain.pre_tokenizer),
      .model = std::move(model),
      .post_processor = std::move(post_processor),
      .token_bytes = std::move(token_bytes),
      .is_special = std::move(is_special),
      .bos_token_id = FindToken(vocabulary, "bos_token", config.bos_token),
      .eos_token_id = FindToken(vocabulary, "eos_token", config.eos_token),
      .chat_template = config.chat_template};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(absl::string_view model_dir) {
  const std::string dir(model_dir);
  PAGODA_ASSIGN_OR_RETURN(const JsonDocument document,
                          JsonDocument::Read(absl::StrCat(dir, "/tokenizer.json")));
  PAGODA_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(dir));
  PAGODA_ASSIGN_OR_RETURN(PipelineTokenizer::Parts parts, BuildParts(document.root(), config));
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace pagoda::engine
