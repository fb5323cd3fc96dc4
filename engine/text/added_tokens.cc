#include "engine/text/added_tokens.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/text/character_class.h"
#include "engine/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

bool IsContinuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// The bytes of the character that begins at `begin`.
absl::string_view CharacterAt(absl::string_view text, size_t begin) {
  size_t end = begin + 1;
  while (end < text.size() && IsContinuation(text[end])) ++end;
  return text.substr(begin, end - begin);
}

absl::string_view CharacterBefore(absl::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && IsContinuation(text[begin])) --begin;
  return text.substr(begin, end - begin);
}

bool IsWhiteSpaceText(absl::string_view character) {
  size_t offset = 0;
  return IsWhiteSpace(NextCodePoint(character, &offset));
}

}  // namespace

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const JsonElement& tokenizer) {
  std::vector<AddedToken> tokens;
  const absl::optional<JsonElement> list = tokenizer.Find("added_tokens");
  if (!list) return tokens;
  PAGODA_ASSIGN_OR_RETURN(const std::vector<JsonElement> elements, list->Array());
  for (const JsonElement& element : elements) {
    AddedToken token;
    PAGODA_ASSIGN_OR_RETURN(const JsonElement content, element.Get("content"));
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view text, content.String());
    token.content = std::string(text);
    PAGODA_ASSIGN_OR_RETURN(const JsonElement id, element.Get("id"));
    PAGODA_ASSIGN_OR_RETURN(const int64_t value, id.Integer());
    if (value < 0 || value > INT32_MAX) return id.Error("out of range");
    token.id = static_cast<TokenId>(value);
    PAGODA_ASSIGN_OR_RETURN(token.is_special, element.BoolOr("special", false));
    PAGODA_ASSIGN_OR_RETURN(token.normalized, element.BoolOr("normalized", !token.is_special));
    PAGODA_ASSIGN_OR_RETURN(token.strip_left, element.BoolOr("lstrip", false));
    PAGODA_ASSIGN_OR_RETURN(token.strip_right, element.BoolOr("rstrip", false));
    PAGODA_ASSIGN_OR_RETURN(token.single_word, element.BoolOr("single_word", false));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// The contents of a set of tokens, byte by byte.
class AddedTokenMatcher::Trie {
 public:
  void Add(const AddedToken& token) {
    int32_t node = 0;
    for (const char c : token.content) {
      int32_t child = Child(node, c);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_[node].children.emplace_back(c, child);
        nodes_.emplace_back();
      }
      node = child;
    }
    nodes_[node].token = token;
    is_first_byte_[static_cast<uint8_t>(token.content.front())] = true;
  }

  bool empty() const { return nodes_.size() == 1; }

  // The first place at or after `from` where a token may begin; text.size() when there is none.
  size_t NextCandidate(absl::string_view text, size_t from) const {
    while (from < text.size() && !is_first_byte_[static_cast<uint8_t>(text[from])]) ++from;
    return from;
  }

  // The longest token that begins at `at` and, if special, is trusted throughout; null when there
  // is none.
  const AddedToken* LongestAt(const Input& input, size_t at) const {
    const AddedToken* longest = nullptr;
    int32_t node = 0;
    bool is_trusted = true;
    for (size_t i = at; i < input.text.size(); ++i) {
      node = Child(node, input.text[i]);
      if (node < 0) break;
      is_trusted = is_trusted && (input.trusted.empty() || input.trusted[i] == '\1');
      const absl::optional<AddedToken>& token = nodes_[node].token;
      if (token && (is_trusted || !token->is_special)) longest = &*token;
    }
    return longest;
  }

 private:
  struct Node {
    std::vector<std::pair<char, int32_t>> children;
    absl::optional<AddedToken> token;
  };

  // -1: none.
  int32_t Child(int32_t node, char c) const {
    for (const auto& [label, child] : nodes_[node].children) {
      if (label == c) return child;
    }
    return -1;
  }

  std::vector<Node> nodes_{1};
  std::array<bool, 256> is_first_byte_{};
};

AddedTokenMatcher::AddedTokenMatcher() = default;
AddedTokenMatcher::AddedTokenMatcher(AddedTokenMatcher&&) = default;
AddedTokenMatcher::~AddedTokenMatcher() = default;

absl::StatusOr<AddedTokenMatcher> AddedTokenMatcher::Make(const std::vector<AddedToken>& tokens,
                                                          bool normalized) {
  AddedTokenMatcher matcher;
  bool needs_words = false;
  for (const bool with_special : {false, true}) {
    auto trie = std::make_unique<Trie>();
    for (const AddedToken& token : tokens) {
      const bool is_of_set = token.normalized == normalized && (with_special || !token.is_special);
      if (!is_of_set || token.content.empty()) continue;
      trie->Add(token);
      needs_words = needs_words || token.single_word;
    }
    if (!trie->empty()) matcher.tries_[with_special] = std::move(trie);
  }
  if (needs_words) {
    PAGODA_ASSIGN_OR_RETURN(matcher.word_at_start_, Regex::Compile(R"(\A[\w\x{200C}\x{200D}])"));
  }
  return matcher;
}

absl::Status AddedTokenMatcher::Split(const Input& input,
                                      RegexScratch& scratch,
                                      std::vector<TextSection>* sections) const {
  sections->clear();
  const Trie* trie = tries_[input.match_special].get();
  if (trie != nullptr) return SplitText(*trie, input, scratch, sections);
  if (!input.text.empty()) sections->push_back({input.text, absl::nullopt});
  return absl::OkStatus();
}

absl::Status AddedTokenMatcher::SplitText(const Trie& trie,
                                          const Input& input,
                                          RegexScratch& scratch,
                                          std::vector<TextSection>* sections) const {
  const absl::string_view text = input.text;
  size_t text_begin = 0;  // of what is not yet in a section
  size_t at = trie.NextCandidate(text, 0);
  while (at < text.size()) {
    const AddedToken* token = trie.LongestAt(input, at);
    if (token == nullptr) {
      at = trie.NextCandidate(text, at + 1);
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    if (token->single_word) {
      PAGODA_ASSIGN_OR_RETURN(const bool inside_word, IsInsideWord(text, begin, end, scratch));
      if (inside_word) {
        at = trie.NextCandidate(text, end);
        continue;
      }
    }
    if (token->strip_left) {
      while (begin > text_begin && IsWhiteSpaceText(CharacterBefore(text, begin))) {
        begin -= CharacterBefore(text, begin).size();
      }
    }
    if (token->strip_right) {
      while (end < text.size() && IsWhiteSpaceText(CharacterAt(text, end)))
        end += CharacterAt(text, end).size();
    }
    if (text_begin < begin)
      sections->push_back({text.substr(text_begin, begin - text_begin), absl::nullopt});
    sections->push_back({text.substr(begin, end - begin), token->id});
    text_begin = end;
    at = trie.NextCandidate(text, end);
  }
  if (text_begin < text.size()) sections->push_back({text.substr(text_begin), absl::nullopt});
  return absl::OkStatus();
}

// Whether a word character is right before or right after the range.
absl::StatusOr<bool> AddedTokenMatcher::IsInsideWord(absl::string_view text,
                                                     size_t begin,
                                                     size_t end,
                                                     RegexScratch& scratch) const {
  bool is_word = false;
  const auto see = [&](size_t, size_t) { is_word = true; };
  if (begin > 0) {
    PAGODA_RETURN_IF_ERROR(
        word_at_start_->ForEachMatch(CharacterBefore(text, begin), scratch, see));
  }
  if (end < text.size()) {
    PAGODA_RETURN_IF_ERROR(word_at_start_->ForEachMatch(CharacterAt(text, end), scratch, see));
  }
  return is_word;
}

}  // namespace pagoda::engine
