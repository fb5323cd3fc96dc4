#include "engine/text/sentencepiece_json.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace pagoda::engine {
namespace {

using Json = nlohmann::json;
using PieceType = SentencePieceFile::PieceType;

bool IsMergeable(const SentencePieceFile::Piece& piece) {
  return piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined;
}

absl::Status RefuseUnsupported(const SentencePieceFile& file) {
  if (file.type != SentencePieceFile::Type::kBpe && file.type != SentencePieceFile::Type::kUnigram)
    return absl::InvalidArgumentError("only BPE and Unigram models are supported");
  if (file.treat_whitespace_as_suffix)
    return absl::InvalidArgumentError("treat_whitespace_as_suffix is not supported");
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type == PieceType::kUnused)
      return absl::InvalidArgumentError(absl::StrCat("unused piece ", id, " is not supported"));
  }
  return absl::OkStatus();
}

// Every way to put a piece together from two others, better pieces first.
Json MergesOf(const SentencePieceFile& file) {
  absl::flat_hash_map<absl::string_view, size_t> ids;
  std::vector<size_t> order;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (!IsMergeable(file.pieces[id])) continue;
    ids.emplace(file.pieces[id].text, id);
    order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return file.pieces[a].score > file.pieces[b].score;
  });
  Json merges = Json::array();
  for (const size_t id : order) {
    const absl::string_view text = file.pieces[id].text;
    for (size_t i = 1; i < text.size(); ++i) {
      if ((static_cast<uint8_t>(text[i]) & 0xC0) == 0x80) continue;
      const absl::string_view left = text.substr(0, i), right = text.substr(i);
      if (ids.contains(left) && ids.contains(right))
        merges.push_back({std::string(left), std::string(right)});
    }
  }
  return merges;
}

absl::optional<size_t> UnknownId(const SentencePieceFile& file) {
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type == PieceType::kUnknown) return id;
  }
  return absl::nullopt;
}

Json ModelOf(const SentencePieceFile& file) {
  const absl::optional<size_t> unknown = UnknownId(file);
  if (file.type == SentencePieceFile::Type::kUnigram) {
    Json vocab = Json::array();
    for (const auto& piece : file.pieces) vocab.push_back({piece.text, piece.score});
    return {{"type", "Unigram"},
            {"unk_id", unknown ? Json(*unknown) : Json(nullptr)},
            {"byte_fallback", file.byte_fallback},
            {"vocab", std::move(vocab)}};
  }
  Json vocab = Json::object();
  for (size_t id = 0; id < file.pieces.size(); ++id) vocab[file.pieces[id].text] = id;
  return {{"type", "BPE"},
          {"unk_token", unknown ? Json(file.pieces[*unknown].text) : Json(nullptr)},
          {"fuse_unk", true},
          {"byte_fallback", file.byte_fallback},
          {"vocab", std::move(vocab)},
          {"merges", MergesOf(file)}};
}

// The pieces that are matched in text, and what tokenizer_config.json adds to them.
Json AddedTokensOf(const SentencePieceFile& file, const TokenizerConfig& config) {
  Json tokens = Json::array();
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const SentencePieceFile::Piece& piece = file.pieces[id];
    const bool is_special = piece.type == PieceType::kControl || piece.type == PieceType::kUnknown;
    if (!is_special && piece.type != PieceType::kUserDefined) continue;
    if (config.added_tokens.contains(std::to_string(id))) continue;
    tokens.push_back({{"id", id},
                      {"content", piece.text},
                      {"special", is_special},
                      {"normalized", !is_special}});
  }
  for (const auto& [id, token] : config.added_tokens.items()) {
    Json entry = token;
    entry["id"] = std::atoll(id.c_str());
    tokens.push_back(std::move(entry));
  }
  return tokens;
}

Json PostProcessorOf(const SentencePieceFile& file, const TokenizerConfig& config) {
  const bool is_bpe = file.type == SentencePieceFile::Type::kBpe;
  const auto num_pieces = static_cast<int32_t>(file.pieces.size());
  const bool has_bos = file.bos_id >= 0 && file.bos_id < num_pieces;
  const bool has_eos = file.eos_id >= 0 && file.eos_id < num_pieces;
  Json single = Json::array(), special = Json::object();
  const auto add = [&](int32_t id) {
    const std::string& text = file.pieces[id].text;
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    special[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
  };
  if (has_bos && config.add_bos_token.value_or(is_bpe)) add(file.bos_id);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (has_eos && config.add_eos_token.value_or(!is_bpe)) add(file.eos_id);
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"special_tokens", std::move(special)}};
}

// Blanks that a text loses at its front. Where extra ones are removed from texts, a decoded one
// loses that of every piece before its first letter; such a vocabulary has no piece that begins
// with two.
int NumStripped(const SentencePieceFile& file) {
  constexpr int kAll = 1000;
  if (file.remove_extra_whitespaces) return kAll;
  return file.add_dummy_prefix ? 1 : 0;
}

Json DecoderOf(const SentencePieceFile& file) {
  return {{"type", "Sequence"},
          {"decoders",
           {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
            {{"type", "ByteFallback"}},
            {{"type", "Fuse"}},
            {{"type", "Strip"}, {"content", " "}, {"start", NumStripped(file)}, {"stop", 0}}}}};
}

}  // namespace

absl::StatusOr<std::string> SentencePieceToJson(const SentencePieceFile& file,
                                                const TokenizerConfig& config) {
  PAGODA_RETURN_IF_ERROR(RefuseUnsupported(file));
  const Json root = {{"added_tokens", AddedTokensOf(file, config)},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", nullptr},
                     {"post_processor", PostProcessorOf(file, config)},
                     {"decoder", DecoderOf(file)},
                     {"model", ModelOf(file)}};
  return root.dump();
}

}  // namespace pagoda::engine
