#include "engine/text/unigram_model.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/byte_trie.h"
#include "engine/text/utf8.h"
#include "engine/text/word_cache.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// How much less than the least probable token an unknown character scores.
constexpr double kUnknownPenalty = 10.0;
constexpr TokenId kUnknown = -1;

struct UnigramTables {
  ByteTrie trie;
  std::vector<double> scores = {};  // by id
  double unknown_score = 0;
  absl::optional<TokenId> unknown_id = {};
  // Tokens of the bytes that unknown characters become; empty: they do not.
  std::vector<TokenId> byte_ids = {};
};

class UnigramScratch final : public TokenModel::Scratch {
 public:
  // The best way to the end of a prefix: its last token and where that begins.
  struct Step {
    double score;
    size_t begin;
    TokenId id;  // kUnknown: one character
    bool is_reached;
  };
  void Trim() override {
    if (best.capacity() > kMaxKept) best = {};
    if (path.capacity() > kMaxKept) path = {};
  }

  WordCache cache;
  std::vector<Step> best;
  std::vector<std::pair<size_t, TokenId>> path;  // begin and id, last first
  std::vector<TokenId> word_ids;

 private:
  static constexpr size_t kMaxKept = 1 << 16;
};

class UnigramModel final : public TokenModel {
 public:
  explicit UnigramModel(UnigramTables tables) : tables_(std::move(tables)) {}

  std::unique_ptr<Scratch> MakeScratch() const override {
    return std::make_unique<UnigramScratch>();
  }

  absl::Status Encode(absl::string_view piece,
                      Scratch& base_scratch,
                      std::vector<TokenId>* ids) const override {
    UnigramScratch& scratch = static_cast<UnigramScratch&>(base_scratch);
    if (!WordCache::Fits(piece)) return EncodeWord(piece, scratch, ids);
    const size_t index = scratch.cache.IndexOf(piece);
    absl::Span<const TokenId> found = scratch.cache.Find(index, piece);
    if (found.empty()) {
      scratch.word_ids.clear();
      PAGODA_RETURN_IF_ERROR(EncodeWord(piece, scratch, &scratch.word_ids));
      scratch.cache.Insert(index, piece, scratch.word_ids);
      found = scratch.word_ids;
    }
    ids->insert(ids->end(), found.begin(), found.end());
    return absl::OkStatus();
  }

 private:
  absl::Status EncodeWord(absl::string_view word,
                          UnigramScratch& scratch,
                          std::vector<TokenId>* ids) const {
    FindBestSteps(word, scratch);
    scratch.path.clear();
    for (size_t end = word.size(); end > 0; end = scratch.best[end].begin)
      scratch.path.emplace_back(scratch.best[end].begin, scratch.best[end].id);
    // A run of unknown characters is one token.
    for (size_t i = scratch.path.size(); i-- > 0;) {
      const auto [begin, id] = scratch.path[i];
      if (id != kUnknown) {
        ids->push_back(id);
        continue;
      }
      while (i > 0 && scratch.path[i - 1].second == kUnknown) --i;
      const size_t end = i > 0 ? scratch.path[i - 1].first : word.size();
      PAGODA_RETURN_IF_ERROR(AppendUnknown(word.substr(begin, end - begin), ids));
    }
    return absl::OkStatus();
  }

  // Viterbi: to scratch.best, by end.
  void FindBestSteps(absl::string_view word, UnigramScratch& scratch) const {
    using Step = UnigramScratch::Step;
    std::vector<Step>& best = scratch.best;
    best.assign(word.size() + 1, Step{0, 0, kUnknown, false});
    const auto offer = [&best](size_t end, Step step) {
      if (!best[end].is_reached || step.score > best[end].score) best[end] = step;
    };
    for (size_t begin = 0; begin < word.size();) {
      const double score = best[begin].score;
      size_t next = begin;
      NextCodePoint(word, &next);
      bool is_known = false;
      ByteTrie::Node node = ByteTrie::kRoot;
      for (size_t i = begin; i < word.size(); ++i) {
        node = tables_.trie.Child(node, static_cast<uint8_t>(word[i]));
        if (node == ByteTrie::kNoNode) break;
        const TokenId id = tables_.trie.Token(node);
        if (id == ByteTrie::kNoToken) continue;
        offer(i + 1, {tables_.scores[id] + score, begin, id, true});
        is_known = is_known || i + 1 == next;
      }
      if (!is_known) offer(next, {tables_.unknown_score + score, begin, kUnknown, true});
      begin = next;
    }
  }

  absl::Status AppendUnknown(absl::string_view text, std::vector<TokenId>* ids) const {
    if (!tables_.byte_ids.empty()) {
      for (const char c : text) ids->push_back(tables_.byte_ids[static_cast<uint8_t>(c)]);
      return absl::OkStatus();
    }
    if (!tables_.unknown_id) {
      size_t offset = 0;
      return absl::InvalidArgumentError(
          absl::StrFormat("text holds U+%04X, which the tokenizer's vocabulary has no token for",
                          static_cast<uint32_t>(NextCodePoint(text, &offset))));
    }
    ids->push_back(*tables_.unknown_id);
    return absl::OkStatus();
  }

  const UnigramTables tables_;
};

// The second element of each entry of "vocab".
absl::StatusOr<std::vector<double>> ReadScores(const JsonElement& vocab) {
  simdjson::dom::array array;
  if (vocab.value().get(array) != simdjson::SUCCESS)
    return vocab.Error("expected an array of [token, score]");
  std::vector<double> scores = {};
  for (const simdjson::dom::element entry : array) {
    double score;
    if (entry.at(1).get(score) != simdjson::SUCCESS)
      return vocab.Error(absl::StrCat("the score of token ", scores.size(), " is not a number"));
    scores.push_back(score);
  }
  return scores;
}

// All or nothing: a byte without a token leaves its character unknown, which no model means.
absl::StatusOr<std::vector<TokenId>> ReadByteIds(const TokenModelParts& parts) {
  std::vector<TokenId> ids;
  PAGODA_ASSIGN_OR_RETURN(const bool byte_fallback, parts.element.BoolOr("byte_fallback", false));
  for (int byte = 0; byte < 256 && byte_fallback; ++byte) {
    const std::string spelling = absl::StrFormat("<0x%02X>", byte);
    const absl::optional<TokenId> id = parts.vocabulary.Find(spelling);
    if (!id)
      return parts.element.Error(
          absl::StrCat("byte_fallback: \"", spelling, "\" is not in the vocabulary"));
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenModel>> MakeUnigramModel(const TokenModelParts& parts) {
  if (parts.is_byte_level)
    return parts.element.Error(
        "a Unigram model after the pre-tokenizer ByteLevel is not supported");
  PAGODA_ASSIGN_OR_RETURN(const JsonElement vocab, parts.element.Get("vocab"));
  PAGODA_ASSIGN_OR_RETURN(std::vector<double> scores, ReadScores(vocab));
  std::vector<std::pair<absl::string_view, TokenId>> spellings;
  for (TokenId id = 0; id < static_cast<TokenId>(scores.size()); ++id) {
    const absl::string_view spelling = parts.vocabulary.Spelling(id).value_or("");
    if (!spelling.empty() && !parts.is_hidden[id]) spellings.emplace_back(spelling, id);
  }
  UnigramTables tables = {.trie = ByteTrie(std::move(spellings))};
  double least = std::numeric_limits<double>::infinity();
  for (const double score : scores) least = std::min(least, score);
  tables.unknown_score = least - kUnknownPenalty;
  tables.scores = std::move(scores);
  PAGODA_ASSIGN_OR_RETURN(tables.byte_ids, ReadByteIds(parts));
  if (absl::optional<JsonElement> unknown = parts.element.Find("unk_id")) {
    PAGODA_ASSIGN_OR_RETURN(const int64_t id, unknown->Integer());
    if (id < 0 || id >= static_cast<int64_t>(tables.scores.size()))
      return unknown->Error(absl::StrCat(id, " is not in the vocabulary"));
    tables.unknown_id = static_cast<TokenId>(id);
  }
  return std::make_unique<UnigramModel>(std::move(tables));
}

}  // namespace pagoda::engine
