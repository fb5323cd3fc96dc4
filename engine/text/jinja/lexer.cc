#include "engine/text/jinja/lexer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::jinja {
namespace {

constexpr absl::string_view kOperators[] = {
    // Longest first.
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
    ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ",", ".", ":", "|",
};

absl::Status ErrorAt(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("chat template, line ", line, ": ", what));
}

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {
    if (absl::EndsWith(source_, "\n")) source_.remove_suffix(1);
    if (absl::EndsWith(source_, "\r")) source_.remove_suffix(1);
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (position_ < source_.size()) {
      const size_t tag = FindTag(position_);
      PAGODA_RETURN_IF_ERROR(TakeText(tag));
      if (tag == absl::string_view::npos) break;
      PAGODA_RETURN_IF_ERROR(TakeTag());
    }
    Emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  size_t FindTag(size_t from) const {
    for (size_t at = source_.find('{', from); at != absl::string_view::npos;
         at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && absl::StrContains("{%#", source_[at + 1])) return at;
    }
    return absl::string_view::npos;
  }

  void Emit(TokenKind kind, absl::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }

  // Template data up to a tag (or the end), without the white space that tags on either side
  // remove.
  absl::Status TakeText(size_t tag) {
    const size_t end = tag == absl::string_view::npos ? source_.size() : tag;
    absl::string_view text = source_.substr(position_, end - position_);
    const int lines = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    const bool at_line_start = position_ == 0 || source_[position_ - 1] == '\n';
    if (strip_next_) text = absl::StripLeadingAsciiWhitespace(text);
    strip_next_ = false;
    if (tag != absl::string_view::npos) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      if (sign == '-') {
        text = absl::StripTrailingAsciiWhitespace(text);
      } else if (sign != '+' && source_[tag + 1] != '{') {
        text = StripLineIndent(text, at_line_start);
      }
    }
    if (!text.empty()) Emit(TokenKind::kText, text);
    line_ += lines;
    position_ = end;
    return absl::OkStatus();
  }

  // lstrip_blocks: blanks between the start of a line and a block tag go.
  static absl::string_view StripLineIndent(absl::string_view text, bool at_line_start) {
    const size_t newline = text.rfind('\n');
    if (newline == absl::string_view::npos && !at_line_start) return text;
    const size_t begin = newline == absl::string_view::npos ? 0 : newline + 1;
    for (size_t i = begin; i < text.size(); ++i) {
      if (text[i] != ' ' && text[i] != '\t') return text;
    }
    return text.substr(0, begin);
  }

  absl::Status TakeTag() {
    const char kind = source_[position_ + 1];
    position_ += 2;
    if (kind == '#') return TakeComment();
    if (position_ < source_.size() && (source_[position_] == '-' || source_[position_] == '+'))
      ++position_;
    if (kind == '%' && TakeRaw()) return raw_status_;
    Emit(kind == '{' ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
    return TakeExpression(kind == '{' ? "}}" : "%}");
  }

  absl::Status TakeComment() {
    const size_t end = source_.find("#}", position_);
    if (end == absl::string_view::npos) return ErrorAt(line_, "a comment is not closed with #}");
    line_ += static_cast<int>(std::count(source_.begin() + position_, source_.begin() + end, '\n'));
    const bool strip = end > position_ && source_[end - 1] == '-';
    const bool keep = end > position_ && source_[end - 1] == '+';
    position_ = end + 2;
    EndTag(strip, !keep);
    return absl::OkStatus();
  }

  // {% raw %} ... {% endraw %}: everything between is text. True when this is such a tag.
  bool TakeRaw() {
    size_t at = position_;
    if (!SkipWord("raw", &at)) return false;
    size_t begin = at;
    for (size_t tag = source_.find("{%", at); tag != absl::string_view::npos;
         tag = source_.find("{%", tag + 2)) {
      size_t close = tag + 2;
      if (close < source_.size() && source_[close] == '-') ++close;
      if (!SkipWord("endraw", &close)) continue;
      absl::string_view text = source_.substr(begin, tag - begin);
      if (tag + 2 < source_.size() && source_[tag + 2] == '-')
        text = absl::StripTrailingAsciiWhitespace(text);
      if (!text.empty()) Emit(TokenKind::kText, text);
      line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
      position_ = close;
      EndTag(source_[close - 3] == '-', true);
      raw_status_ = absl::OkStatus();
      return true;
    }
    raw_status_ = ErrorAt(line_, "{% raw %} is not closed");
    return true;
  }

  // Blanks, `word`, blanks, an optional sign, "%}" from *at on; moves *at behind it.
  bool SkipWord(absl::string_view word, size_t* at) const {
    size_t i = *at;
    while (i < source_.size() && absl::ascii_isspace(source_[i])) ++i;
    if (!absl::StartsWith(source_.substr(i), word)) return false;
    i += word.size();
    while (i < source_.size() && absl::ascii_isspace(source_[i])) ++i;
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
    if (!absl::StartsWith(source_.substr(i), "%}")) return false;
    *at = i + 2;
    return true;
  }

  // trim_blocks: one newline behind a block tag goes.
  void EndTag(bool strip, bool trim_newline) {
    strip_next_ = strip;
    if (strip || !trim_newline) return;
    if (absl::StartsWith(source_.substr(position_), "\r\n")) {
      position_ += 2;
      ++line_;
    } else if (absl::StartsWith(source_.substr(position_), "\n")) {
      position_ += 1;
      ++line_;
    }
  }

  absl::Status TakeExpression(absl::string_view end) {
    int depth = 0;
    while (true) {
      while (position_ < source_.size() && absl::ascii_isspace(source_[position_])) {
        line_ += source_[position_] == '\n';
        ++position_;
      }
      if (position_ >= source_.size())
        return ErrorAt(line_, absl::StrCat("a tag is not closed with ", end));
      const absl::string_view rest = source_.substr(position_);
      const bool signed_end =
          (rest[0] == '-' || rest[0] == '+') && absl::StartsWith(rest.substr(1), end);
      if (depth == 0 && (signed_end || absl::StartsWith(rest, end))) {
        position_ += end.size() + (signed_end ? 1 : 0);
        Emit(end == "}}" ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "");
        // Output tags trim no newline.
        EndTag(signed_end && rest[0] == '-', end == "%}" && !(signed_end && rest[0] == '+'));
        return absl::OkStatus();
      }
      PAGODA_RETURN_IF_ERROR(TakeToken(rest, &depth));
    }
  }

  absl::Status TakeToken(absl::string_view rest, int* depth) {
    const char c = rest[0];
    if (c == '\'' || c == '"') return TakeString(rest);
    if (absl::ascii_isdigit(c)) return TakeNumber(rest);
    if (absl::ascii_isalpha(c) || c == '_') {
      size_t n = 1;
      while (n < rest.size() && (absl::ascii_isalnum(rest[n]) || rest[n] == '_')) ++n;
      Emit(TokenKind::kName, rest.substr(0, n));
      position_ += n;
      return absl::OkStatus();
    }
    for (absl::string_view op : kOperators) {
      if (!absl::StartsWith(rest, op)) continue;
      if (absl::StrContains("([{", op)) ++*depth;
      if (absl::StrContains(")]}", op)) --*depth;
      Emit(TokenKind::kOperator, op);
      position_ += op.size();
      return absl::OkStatus();
    }
    return ErrorAt(line_, absl::StrCat("unexpected character '", rest.substr(0, 1), "'"));
  }

  absl::Status TakeString(absl::string_view rest) {
    const char quote = rest[0];
    std::string value;
    for (size_t i = 1; i < rest.size(); ++i) {
      if (rest[i] == quote) {
        Emit(TokenKind::kString, value);
        line_ += static_cast<int>(std::count(rest.begin(), rest.begin() + i, '\n'));
        position_ += i + 1;
        return absl::OkStatus();
      }
      if (rest[i] != '\\' || i + 1 >= rest.size()) {
        value += rest[i];
        continue;
      }
      i += AppendEscape(rest.substr(i), &value) - 1;
    }
    return ErrorAt(line_, "a string is not closed");
  }

  // Python's escapes; returns the bytes read.
  static size_t AppendEscape(absl::string_view text, std::string* value) {
    const char c = text[1];
    static constexpr std::pair<char, char> kSimple[] = {{'n', '\n'},
                                                        {'t', '\t'},
                                                        {'r', '\r'},
                                                        {'\\', '\\'},
                                                        {'\'', '\''},
                                                        {'"', '"'},
                                                        {'a', '\a'},
                                                        {'b', '\b'},
                                                        {'f', '\f'},
                                                        {'v', '\v'},
                                                        {'0', '\0'}};
    for (const auto& [name, byte] : kSimple) {
      if (c == name) {
        *value += byte;
        return 2;
      }
    }
    if (c == '\n') return 2;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0 && text.size() >= 2 + digits) {
      uint32_t code = 0;
      bool valid = true;
      for (char digit : text.substr(2, digits)) {
        valid = valid && absl::ascii_isxdigit(digit);
        code = code * 16 + static_cast<uint32_t>(absl::ascii_isdigit(digit)
                                                     ? digit - '0'
                                                     : absl::ascii_tolower(digit) - 'a' + 10);
      }
      if (valid && code < 0x110000 && (code < 0xd800 || code > 0xdfff)) {
        AppendCodePoint(code, value);
        return 2 + digits;
      }
    }
    absl::StrAppend(value, text.substr(0, 2));
    return 2;
  }

  static void AppendCodePoint(uint32_t code, std::string* out) {
    if (code < 0x80) {
      *out += static_cast<char>(code);
    } else if (code < 0x800) {
      *out += {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
    } else if (code < 0x10000) {
      *out += {static_cast<char>(0xe0 | (code >> 12)),
               static_cast<char>(0x80 | ((code >> 6) & 0x3f)),
               static_cast<char>(0x80 | (code & 0x3f))};
    } else {
      *out += {static_cast<char>(0xf0 | (code >> 18)),
               static_cast<char>(0x80 | ((code >> 12) & 0x3f)),
               static_cast<char>(0x80 | ((code >> 6) & 0x3f)),
               static_cast<char>(0x80 | (code & 0x3f))};
    }
  }

  absl::Status TakeNumber(absl::string_view rest) {
    size_t n = 0;
    bool is_float = false;
    while (n < rest.size()) {
      const char c = rest[n];
      if (absl::ascii_isdigit(c) || c == '_') {
        ++n;
      } else if (c == '.' && !is_float && n + 1 < rest.size() && absl::ascii_isdigit(rest[n + 1])) {
        is_float = true;
        ++n;
      } else if ((c == 'e' || c == 'E') && n + 1 < rest.size() &&
                 (absl::ascii_isdigit(rest[n + 1]) ||
                  ((rest[n + 1] == '-' || rest[n + 1] == '+') && n + 2 < rest.size() &&
                   absl::ascii_isdigit(rest[n + 2])))) {
        is_float = true;
        n += 2;
      } else {
        break;
      }
    }
    std::string digits(rest.substr(0, n));
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    Emit(is_float ? TokenKind::kFloat : TokenKind::kInt, digits);
    position_ += n;
    return absl::OkStatus();
  }

  absl::string_view source_;
  size_t position_ = 0;
  int line_ = 1;
  bool strip_next_ = false;
  absl::Status raw_status_;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  return Lexer(source).Run();
}

}  // namespace pagoda::engine::jinja
