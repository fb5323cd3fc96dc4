#include "engine/text/bpe_model.h"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/text/bpe_merger.h"
#include "engine/text/bpe_symbols.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"
#include "engine/text/word_cache.h"
#include "engine/text/word_table.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Beyond this the parser no longer knows how long an array is.
constexpr size_t kMaxMerges = (size_t{1} << 24) - 2;

struct BpeTables {
  BpeSymbols symbols;
  MergeTable merges{0};
  WordTable words = {};  // whole pieces; empty unless ignore_merges
  // No token reaches over the place before a blank's mark that follows another character, so words
  // can be told apart there and be found in the cache.
  bool splits_at_marks = false;
};

// What SentencePiece writes for a blank.
constexpr absl::string_view kMark = "\xE2\x96\x81";

class BpeScratch final : public TokenModel::Scratch {
 public:
  void Trim() override {
    merger.Trim();
    if (word_ids.capacity() > kMaxKeptIds) word_ids = {};
  }

  WordCache cache;
  BpeMerger merger;
  std::vector<TokenId> word_ids;

 private:
  static constexpr size_t kMaxKeptIds = 1 << 16;
};

class BpeModel final : public TokenModel {
 public:
  explicit BpeModel(BpeTables tables) : tables_(std::move(tables)) {}

  std::unique_ptr<Scratch> MakeScratch() const override { return std::make_unique<BpeScratch>(); }

  absl::Status Encode(absl::string_view piece,
                      Scratch& base_scratch,
                      std::vector<TokenId>* ids) const override {
    BpeScratch& scratch = static_cast<BpeScratch&>(base_scratch);
    if (!tables_.splits_at_marks) return EncodePiece(piece, scratch, ids);
    while (!piece.empty()) {
      const absl::string_view word = piece.substr(0, WordEnd(piece));
      PAGODA_RETURN_IF_ERROR(EncodePiece(word, scratch, ids));
      piece.remove_prefix(word.size());
    }
    return absl::OkStatus();
  }

 private:
  // The marks at the front, then all up to the next mark.
  static size_t WordEnd(absl::string_view piece) {
    size_t begin = 0;
    while (absl::StartsWith(piece.substr(begin), kMark)) begin += kMark.size();
    return std::min(piece.find(kMark, begin), piece.size());
  }

  absl::Status EncodePiece(absl::string_view piece,
                           BpeScratch& scratch,
                           std::vector<TokenId>* ids) const {
    if (!WordCache::Fits(piece)) {
      PAGODA_RETURN_IF_ERROR(EncodeWord(piece, scratch));
      ids->insert(ids->end(), scratch.word_ids.begin(), scratch.word_ids.end());
      return absl::OkStatus();
    }
    const size_t index = scratch.cache.IndexOf(piece);
    absl::Span<const TokenId> found = scratch.cache.Find(index, piece);
    if (found.empty()) {
      PAGODA_RETURN_IF_ERROR(EncodeWord(piece, scratch));
      scratch.cache.Insert(index, piece, scratch.word_ids);
      found = scratch.word_ids;
    }
    for (const TokenId id : found) ids->push_back(id);
    return absl::OkStatus();
  }

  // To scratch.word_ids.
  absl::Status EncodeWord(absl::string_view word, BpeScratch& scratch) const {
    scratch.word_ids.clear();
    const TokenId whole = tables_.words.Find(word);
    if (whole != WordTable::kNoToken) {
      scratch.word_ids.push_back(whole);
      return absl::OkStatus();
    }
    PAGODA_RETURN_IF_ERROR(tables_.symbols.Append(word, &scratch.word_ids));
    scratch.merger.Run(tables_.merges, &scratch.word_ids);
    return absl::OkStatus();
  }

  const BpeTables tables_;
};

// Fields that would change the ids and that published models leave unset.
absl::Status RefuseUnsupported(const TokenModelParts& parts) {
  const JsonElement& element = parts.element;
  for (const absl::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view affix, element.StringOr(key, ""));
    if (!affix.empty())
      return element.Error(absl::StrCat(key, " \"", affix, "\" is not supported"));
  }
  if (absl::optional<JsonElement> dropout = element.Find("dropout")) {
    double value;
    if (dropout->value().get(value) != simdjson::SUCCESS || value != 0.0) {
      return dropout->Error("dropout other than 0 is not supported");
    }
  }
  return absl::OkStatus();
}

// One merge of the file: two spellings.
absl::StatusOr<std::pair<absl::string_view, absl::string_view>> ReadPair(
    simdjson::dom::element value) {
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) {
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected \"a b\", found \"", absl::string_view(text.data(), text.size()), "\""));
    }
    return std::pair(absl::string_view(text.data(), space),
                     absl::string_view(text.data() + space + 1, text.size() - space - 1));
  }
  simdjson::dom::array array;
  std::string_view left, right;
  if (value.get(array) != simdjson::SUCCESS || array.size() != 2 ||
      array.at(0).get(left) != simdjson::SUCCESS || array.at(1).get(right) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError("expected \"a b\" or [\"a\", \"b\"]");
  }
  return std::pair(absl::string_view(left.data(), left.size()),
                   absl::string_view(right.data(), right.size()));
}

// Reads merges many at once: what a merge needs lies anywhere in memory, and is asked for ahead.
class MergeReader {
 public:
  MergeReader(const TokenModelParts& parts, const JsonElement& element, size_t num_merges)
      : parts_(parts), element_(element), table_(num_merges) {}

  absl::Status Add(simdjson::dom::element value) {
    const auto pair = ReadPair(value);
    if (!pair.ok()) {
      return element_.Error(absl::StrCat("merge ", rank_ + size_, ": ", pair.status().message()));
    }
    Item& item = items_[size_++];
    std::tie(item.left, item.right) = *pair;
    item.left_hash = Vocabulary::Hash(item.left);
    item.right_hash = Vocabulary::Hash(item.right);
    parts_.vocabulary.Prefetch(item.left_hash);
    parts_.vocabulary.Prefetch(item.right_hash);
    return size_ == kBatch ? Flush() : absl::OkStatus();
  }

  absl::StatusOr<MergeTable> Finish() {
    PAGODA_RETURN_IF_ERROR(Flush());
    return std::move(table_);
  }

 private:
  static constexpr size_t kBatch = 64;
  struct Item {
    absl::string_view left, right;
    uint64_t left_hash = 0, right_hash = 0;
    TokenId left_id = 0, right_id = 0, id = 0;
  };

  absl::Status Flush() {
    // Where a spelling is, its text, and what is done with it: a round for each.
    for (size_t i = 0; i < size_; ++i) {
      parts_.vocabulary.PrefetchSpelling(items_[i].left_hash);
      parts_.vocabulary.PrefetchSpelling(items_[i].right_hash);
    }
    for (size_t i = 0; i < size_; ++i) {
      parts_.vocabulary.PrefetchText(items_[i].left_hash);
      parts_.vocabulary.PrefetchText(items_[i].right_hash);
    }
    for (size_t i = 0; i < size_; ++i) PAGODA_RETURN_IF_ERROR(Resolve(rank_ + i, &items_[i]));
    for (size_t i = 0; i < size_; ++i) {
      const Item& item = items_[i];
      const uint32_t rank = rank_ + static_cast<uint32_t>(i);
      if (!parts_.is_hidden[item.id]) table_.Insert(item.left_id, item.right_id, {rank, item.id});
    }
    rank_ += static_cast<uint32_t>(size_);
    size_ = 0;
    return absl::OkStatus();
  }

  // Finds the ids and asks for the place in the table.
  absl::Status Resolve(size_t rank, Item* item) {
    const Vocabulary& vocabulary = parts_.vocabulary;
    const absl::optional<TokenId> left_id = vocabulary.Find(item->left, item->left_hash);
    const absl::optional<TokenId> right_id = vocabulary.Find(item->right, item->right_hash);
    const absl::optional<TokenId> id = FindMerged(item->left, item->right);
    if (!left_id || !right_id || !id) {
      const absl::string_view missing = !left_id    ? item->left
                                        : !right_id ? item->right
                                                    : absl::string_view(merged_);
      return element_.Error(
          absl::StrCat("merge ", rank, ": \"", missing, "\" is not in the vocabulary"));
    }
    item->left_id = *left_id;
    item->right_id = *right_id;
    item->id = last_id_ = *id;
    table_.Prefetch(*left_id, *right_id);
    return absl::OkStatus();
  }

  // Merges follow the order of what they make: mostly it is the same token again, or the next.
  absl::optional<TokenId> FindMerged(absl::string_view left, absl::string_view right) {
    for (const TokenId id : {last_id_, last_id_ + 1}) {
      absl::string_view spelling = parts_.vocabulary.Spelling(id).value_or("");
      if (spelling.size() == left.size() + right.size() && absl::ConsumePrefix(&spelling, left) &&
          spelling == right) {
        return id;
      }
    }
    merged_.assign(left.data(), left.size());
    merged_.append(right.data(), right.size());
    return parts_.vocabulary.Find(merged_);
  }

  const TokenModelParts& parts_;
  const JsonElement& element_;
  MergeTable table_;
  std::array<Item, kBatch> items_;
  size_t size_ = 0;
  uint32_t rank_ = 0;  // of the first item
  TokenId last_id_ = 0;
  std::string merged_;
};

absl::StatusOr<MergeTable> ReadMerges(const TokenModelParts& parts) {
  PAGODA_ASSIGN_OR_RETURN(const JsonElement element, parts.element.Get("merges"));
  simdjson::dom::array array;
  if (element.value().get(array) != simdjson::SUCCESS) return element.Error("expected an array");
  if (array.size() > kMaxMerges) return element.Error("more than 2^24 merges are not supported");
  MergeReader reader(parts, element, array.size());
  for (const simdjson::dom::element value : array) PAGODA_RETURN_IF_ERROR(reader.Add(value));
  return reader.Finish();
}

// Tokens of more than one symbol that text may become as a whole.
WordTable ReadWords(const TokenModelParts& parts) {
  TokenBytesTable words;
  std::string bytes;
  for (TokenId id = 0; id < parts.vocabulary.size(); ++id) {
    absl::string_view word = parts.vocabulary.Spelling(id).value_or("");
    if (parts.is_byte_level) {
      bytes.clear();
      word = byte_alphabet::AppendBytes(word, &bytes) ? bytes : absl::string_view();
    }
    words.Append(word.size() > 1 && !parts.is_hidden[id] ? word : absl::string_view());
  }
  return WordTable(std::move(words));
}

// Whether no token holds a mark right after another character.
bool SplitsAtMarks(const TokenModelParts& parts, const BpeSymbols& symbols) {
  size_t offset = 0;
  if (parts.is_byte_level || symbols.Find(NextCodePoint(kMark, &offset)) < 0) return false;
  for (TokenId id = 0; id < parts.vocabulary.size(); ++id) {
    absl::string_view spelling = parts.vocabulary.Spelling(id).value_or("");
    if (parts.is_hidden[id]) continue;
    while (absl::ConsumePrefix(&spelling, kMark)) {
    }
    if (absl::StrContains(spelling, kMark)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenModel>> MakeBpeModel(const TokenModelParts& parts) {
  PAGODA_RETURN_IF_ERROR(RefuseUnsupported(parts));
  PAGODA_ASSIGN_OR_RETURN(BpeSymbols symbols, BpeSymbols::Make(parts));
  BpeTables tables = {.symbols = std::move(symbols)};
  PAGODA_ASSIGN_OR_RETURN(tables.merges, ReadMerges(parts));
  PAGODA_ASSIGN_OR_RETURN(const bool ignore_merges, parts.element.BoolOr("ignore_merges", false));
  if (ignore_merges) tables.words = ReadWords(parts);
  tables.splits_at_marks = !ignore_merges && SplitsAtMarks(parts, tables.symbols);
  return std::make_unique<BpeModel>(std::move(tables));
}

}  // namespace pagoda::engine
