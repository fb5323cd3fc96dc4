#include "engine/text/tokenizer.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/text/added_tokens.h"
#include "engine/text/normalizer.h"
#include "engine/text/pipeline_tokenizer.h"
#include "engine/text/sentencepiece_file.h"
#include "engine/text/sentencepiece_json.h"
#include "engine/text/sentencepiece_normalizer.h"
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

// Tokens that are matched in normalized text are normalized themselves.
absl::StatusOr<std::vector<AddedToken>> NormalizeContents(std::vector<AddedToken> tokens,
                                                          const Normalizer* normalizer) {
  RegexScratch scratch;
  for (AddedToken& token : tokens) {
    if (!token.normalized || normalizer == nullptr) continue;
    NormalizedText content = {token.content, ""};
    PAGODA_RETURN_IF_ERROR(normalizer->Apply(scratch, &content));
    token.content = std::move(content.text);
  }
  return tokens;
}

// What tokenizer.json cannot say.
struct Peculiarities {
  // Tokens that text never becomes by being spelled, beside the special ones.
  std::vector<TokenId> unspelled;
  // Tokens that are matched in normalized text are spelled as they are found there.
  bool contents_are_normalized = false;
};

absl::StatusOr<std::unique_ptr<Tokenizer>> Build(const JsonElement& root,
                                                 const TokenizerConfig& config,
                                                 std::unique_ptr<Normalizer> normalizer,
                                                 const Peculiarities& peculiarities) {
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
  std::vector<bool> is_hidden = is_special;
  for (const TokenId id : peculiarities.unspelled) is_hidden[id] = true;

  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<TokenModel> model,
                          MakeTokenModel({.element = model_element,
                                          .vocabulary = vocabulary,
                                          .is_hidden = is_hidden,
                                          .is_byte_level = chain.is_byte_level}));
  PAGODA_ASSIGN_OR_RETURN(AddedTokenMatcher matcher,
                          AddedTokenMatcher::Make(added_tokens, /*normalized=*/false));
  PAGODA_ASSIGN_OR_RETURN(
      const std::vector<AddedToken> normalized_tokens,
      NormalizeContents(added_tokens,
                        peculiarities.contents_are_normalized ? nullptr : normalizer.get()));
  PAGODA_ASSIGN_OR_RETURN(AddedTokenMatcher normalized_matcher,
                          AddedTokenMatcher::Make(normalized_tokens, /*normalized=*/true));
  PAGODA_ASSIGN_OR_RETURN(PostProcessor post_processor,
                          PostProcessor::Make(root.Find("post_processor"), vocabulary));
  PAGODA_ASSIGN_OR_RETURN(DecodedVocabulary decoded,
                          DecodeVocabulary(root.Find("decoder"), vocabulary));
  return std::make_unique<PipelineTokenizer>(PipelineTokenizer::Parts{
      .added_tokens = std::move(matcher),
      .normalizer = std::move(normalizer),
      .normalized_added_tokens = std::move(normalized_matcher),
      .pre_tokenizer = std::move(chain.pre_tokenizer),
      .model = std::move(model),
      .post_processor = std::move(post_processor),
      .decoded = std::move(decoded),
      .is_special = std::move(is_special),
      .bos_token_id = FindToken(vocabulary, "bos_token", config.bos_token),
      .eos_token_id = FindToken(vocabulary, "eos_token", config.eos_token)});
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizerJson(const std::string& file,
                                                             const TokenizerConfig& config) {
  PAGODA_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Read(file));
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> normalizer,
                          MakeNormalizer(document.root().Find("normalizer")));
  return Build(document.root(), config, std::move(normalizer), {});
}

// A byte's piece stands for the byte; its spelling is text like any other.
std::vector<TokenId> BytePieces(const SentencePieceFile& file) {
  std::vector<TokenId> ids;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type == SentencePieceFile::PieceType::kByte)
      ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadSentencePiece(const std::string& file,
                                                             const TokenizerConfig& config) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(file, ": no such file"));
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  const auto name_file = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", status.message()));
  };
  const absl::StatusOr<SentencePieceFile> model = SentencePieceFile::Parse(bytes);
  if (!model.ok()) return name_file(model.status());
  const absl::StatusOr<std::string> json = SentencePieceToJson(*model, config);
  if (!json.ok()) return name_file(json.status());
  absl::StatusOr<std::unique_ptr<Normalizer>> normalizer = MakeSentencePieceNormalizer(*model);
  if (!normalizer.ok()) return name_file(normalizer.status());
  PAGODA_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(*json, file));
  return Build(document.root(),
               config,
               *std::move(normalizer),
               {.unspelled = BytePieces(*model), .contents_are_normalized = true});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(absl::string_view model_dir) {
  const std::string dir(model_dir);
  PAGODA_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(dir));
  auto tokenizer = ReadTokenizerJson(absl::StrCat(dir, "/tokenizer.json"), config);
  if (!absl::IsNotFound(tokenizer.status())) return tokenizer;
  auto from_model = ReadSentencePiece(absl::StrCat(dir, "/tokenizer.model"), config);
  return absl::IsNotFound(from_model.status()) ? std::move(tokenizer) : std::move(from_model);
}

}  // namespace pagoda::engine
