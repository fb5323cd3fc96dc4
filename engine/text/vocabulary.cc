#include "engine/text/vocabulary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Tables are as long as the largest id, so a wild id must not decide how much memory is taken. The
// largest published vocabularies have about 2^18 tokens.
constexpr int64_t kMaxVocabSize = int64_t{1} << 24;

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::ReadList(const JsonElement& vocab) {
  Vocabulary vocabulary;
  int64_t id = 0;
  for (const simdjson::dom::element entry : simdjson::dom::array(vocab.value())) {
    std::string_view spelling;
    if (entry.at(0).get(spelling) != simdjson::SUCCESS)
      return vocab.Error(absl::StrCat("token ", id, ": expected [spelling, score]"));
    PAGODA_RETURN_IF_ERROR(
        vocabulary.Add(absl::string_view(spelling.data(), spelling.size()), id, vocab));
    ++id;
  }
  return vocabulary;
}

absl::StatusOr<Vocabulary> Vocabulary::Read(const JsonElement& vocab) {
  if (vocab.is_array()) return ReadList(vocab);
  simdjson::dom::object object;
  if (vocab.value().get(object) != simdjson::SUCCESS)
    return vocab.Error("expected an object of token: id");
  Vocabulary vocabulary;
  vocabulary.spellings_.reserve(object.size());
  vocabulary.ids_.reserve(object.size());
  for (const auto [key, value] : object) {
    const absl::string_view spelling(key.data(), key.size());
    int64_t id;
    if (value.get(id) != simdjson::SUCCESS) {
      return vocab.Error(absl::StrCat("the id of token \"", spelling, "\" is not an integer"));
    }
    PAGODA_RETURN_IF_ERROR(vocabulary.Add(spelling, id, vocab));
  }
  return vocabulary;
}

absl::Status Vocabulary::Add(absl::string_view spelling, int64_t id, const JsonElement& where) {
  if (id < 0 || id >= kMaxVocabSize) {
    return where.Error(absl::StrCat(
        "token \"", spelling, "\" has id ", id, ", expected 0 to ", kMaxVocabSize - 1));
  }
  if (static_cast<size_t>(id) >= spellings_.size()) spellings_.resize(id + 1);
  if (spellings_[id].data() != nullptr && spellings_[id] != spelling) {
    return where.Error(absl::StrCat(
        "id ", id, " is given to both \"", spellings_[id], "\" and \"", spelling, "\""));
  }
  const auto [entry, is_new] = ids_.try_emplace(spelling, static_cast<TokenId>(id));
  if (!is_new && entry->second != id) {
    return where.Error(
        absl::StrCat("token \"", spelling, "\" has both id ", entry->second, " and id ", id));
  }
  spellings_[id] = spelling;
  return absl::OkStatus();
}

absl::optional<TokenId> Vocabulary::Find(absl::string_view spelling) const {
  const auto entry = ids_.find(spelling);
  if (entry == ids_.end()) return absl::nullopt;
  return entry->second;
}

absl::optional<absl::string_view> Vocabulary::Spelling(TokenId id) const {
  if (id < 0 || id >= size() || spellings_[id].data() == nullptr) return absl::nullopt;
  return spellings_[id];
}

}  // namespace pagoda::engine
