#include "engine/text/vocabulary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Tables are as long as the largest id, so a wild id must not decide how much memory is taken. The
// largest published vocabularies have about 2^18 tokens.
constexpr int64_t kMaxVocabSize = int64_t{1} << 24;

constexpr size_t kFirstCapacity = 16;

uint32_t Tag(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

}  // namespace

Vocabulary::Vocabulary() : slots_(kFirstCapacity) {}

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
  vocabulary.Reserve(object.size());
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
  if (2 * num_spellings_ >= slots_.size()) Reserve(2 * num_spellings_);
  const uint64_t hash = Hash(spelling);
  Slot& slot = slots_[SlotOf(spelling, hash)];
  if (slot.id != kNoToken && slot.id != id) {
    return where.Error(
        absl::StrCat("token \"", spelling, "\" has both id ", slot.id, " and id ", id));
  }
  num_spellings_ += slot.id == kNoToken ? 1 : 0;
  slot = {.tag = Tag(hash), .id = static_cast<TokenId>(id)};
  spellings_[id] = spelling;
  return absl::OkStatus();
}

void Vocabulary::Reserve(size_t num_tokens) {
  size_t capacity = slots_.size();
  while (capacity < 2 * num_tokens) capacity *= 2;
  if (capacity == slots_.size()) return;
  std::vector<Slot> old(capacity);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id != kNoToken) slots_[SlotOf(spellings_[slot.id], Hash(spellings_[slot.id]))] = slot;
  }
}

size_t Vocabulary::SlotOf(absl::string_view spelling, uint64_t hash) const {
  size_t i = Home(hash);
  while (slots_[i].id != kNoToken &&
         !(slots_[i].tag == Tag(hash) && spellings_[slots_[i].id] == spelling)) {
    i = (i + 1) & (slots_.size() - 1);
  }
  return i;
}

absl::optional<TokenId> Vocabulary::Find(absl::string_view spelling, uint64_t hash) const {
  const TokenId id = slots_[SlotOf(spelling, hash)].id;
  if (id == kNoToken) return absl::nullopt;
  return id;
}

absl::optional<absl::string_view> Vocabulary::Spelling(TokenId id) const {
  if (id < 0 || id >= size() || spellings_[id].data() == nullptr) return absl::nullopt;
  return spellings_[id];
}

}  // namespace pagoda::engine
