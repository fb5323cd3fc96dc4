#include "engine/text/regex_dialect.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Oniguruma's \s is White_Space; PCRE2's also has U+180E. Its \w is wider than PCRE2's.
constexpr absl::string_view kSpace = R"(\p{White_Space})";
constexpr absl::string_view kNotSpace = R"(\P{White_Space})";
constexpr absl::string_view kWordMembers = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

// Escaped letters that both dialects read the same way.
constexpr absl::string_view kSameLetters = "dDnrtfaexAzZ";

class Translator {
 public:
  explicit Translator(absl::string_view pattern) : rest_(pattern), pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      if (rest_.front() == '\\') {
        PAGODA_RETURN_IF_ERROR(Escape());
      } else if (in_class()) {
        PAGODA_RETURN_IF_ERROR(ClassCharacter());
      } else {
        PAGODA_RETURN_IF_ERROR(PlainCharacter());
      }
    }
    return std::move(out_);
  }

 private:
  absl::Status Refuse(absl::string_view construct) const {
    return absl::InvalidArgumentError(absl::StrCat("pattern element ",
                                                   construct,
                                                   " at byte ",
                                                   pattern_.size() - rest_.size(),
                                                   " is not supported"));
  }

  void Copy(size_t num_bytes) {
    absl::StrAppend(&out_, rest_.substr(0, num_bytes));
    rest_.remove_prefix(num_bytes);
  }
  void Replace(size_t num_bytes, absl::string_view replacement) {
    absl::StrAppend(&out_, replacement);
    rest_.remove_prefix(num_bytes);
  }

  bool in_class() const { return class_depth_ > 0; }

  absl::Status Escape() {
    if (rest_.size() < 2) return Refuse("a backslash at the end");
    const char letter = rest_[1];
    switch (letter) {
      case 's':
        Replace(2, kSpace);
        return absl::OkStatus();
      case 'S':
        Replace(2, kNotSpace);
        return absl::OkStatus();
      case 'w':
        Replace(2, in_class() ? std::string(kWordMembers) : absl::StrCat("[", kWordMembers, "]"));
        return absl::OkStatus();
      case 'v':  // one character; PCRE2 means every kind of vertical space
        Replace(2, "\\x0B");
        return absl::OkStatus();
      case 'p':
      case 'P':
        return Property();
      case 'W':
        if (in_class()) return Refuse("\\W in a class");
        Replace(2, absl::StrCat("[^", kWordMembers, "]"));
        return absl::OkStatus();
      default:
        break;
    }
    // Digits are back references or octal; other letters differ between the two or are not needed.
    if (absl::ascii_isalnum(letter) &&
        !absl::StrContains(kSameLetters, absl::string_view(&letter, 1))) {
      return Refuse(rest_.substr(0, 2));
    }
    Copy(2);
    return absl::OkStatus();
  }

  // \p{Name}, \p{^Name} or \P{Name}: a general category of one or two letters, else a script. A
  // script's bare name means Script_Extensions in PCRE2 and Script in Oniguruma.
  absl::Status Property() {
    const size_t end = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || end == absl::string_view::npos)
      return Refuse(rest_.substr(0, 2));
    absl::string_view name = rest_.substr(3, end - 3);
    const bool negated = absl::ConsumePrefix(&name, "^") != (rest_[1] == 'P');
    Replace(end + 1,
            absl::StrCat(negated ? "\\P{" : "\\p{", name.size() > 2 ? "sc:" : "", name, "}"));
    return absl::OkStatus();
  }

  absl::Status ClassCharacter() {
    if (absl::StartsWith(rest_, "&&")) return Refuse("&& in a class");
    if (rest_.front() == '[') return BeginInnerClass();
    if (rest_.front() != ']') {
      Copy(1);
      return absl::OkStatus();
    }
    if (--class_depth_ > 0) return EndInnerClass();
    Copy(1);
    return absl::OkStatus();
  }

  // The members of a class in a class are its own, so its brackets go. A hyphen beside them would
  // come to mean a range.
  absl::Status BeginInnerClass() {
    for (const absl::string_view opening : {"[^", "[:", "[]", "[-"}) {
      if (absl::StartsWith(rest_, opening)) return Refuse(absl::StrCat(opening, " in a class"));
    }
    if (absl::EndsWith(out_, "-")) return Refuse("a class in a range");
    ++class_depth_;
    rest_.remove_prefix(1);
    return absl::OkStatus();
  }
  absl::Status EndInnerClass() {
    rest_.remove_prefix(1);
    if (absl::EndsWith(out_, "-") || absl::StartsWith(rest_, "-"))
      return Refuse("a class in a range");
    return absl::OkStatus();
  }

  absl::Status PlainCharacter() {
    if (rest_.front() == '[') {
      class_depth_ = 1;
      Copy(absl::StartsWith(rest_, "[^") ? 2 : 1);
      // The first ] is refused because the two disagree on an empty class.
      return absl::StartsWith(rest_, "]") ? Refuse("] first in a class") : absl::OkStatus();
    }
    if (absl::StartsWith(rest_, "(?")) return Group();
    // PCRE2's verbs and options, such as (*ACCEPT).
    if (absl::StartsWith(rest_, "(*")) return Refuse("(*");
    if (rest_.front() == '{') return Interval();
    Copy(1);
    return absl::OkStatus();
  }

  // "(?", then one of ":", "=", "!", ">", "<=", "<!", or the flags i and x up to ":" or ")".
  absl::Status Group() {
    for (absl::string_view opening : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (absl::StartsWith(rest_, opening)) {
        Copy(opening.size());
        return absl::OkStatus();
      }
    }
    const size_t end = rest_.find_first_not_of("ix-", 2);
    if (end == 2 || end == absl::string_view::npos || (rest_[end] != ':' && rest_[end] != ')')) {
      return Refuse(rest_.substr(0, 3));
    }
    Copy(end + 1);
    return absl::OkStatus();
  }

  // In Ruby {n,m}+ repeats the repetition and {,n} starts at zero; in PCRE2 the first is possessive
  // and the second is text.
  absl::Status Interval() {
    const size_t end = rest_.find('}');
    const absl::string_view inside =
        rest_.substr(1, end == absl::string_view::npos ? end : end - 1);
    const bool is_interval = end != absl::string_view::npos && !inside.empty() &&
                             inside.find_first_not_of("0123456789,") == absl::string_view::npos;
    if (!is_interval) return Refuse("{ that opens no interval");
    if (inside.front() == ',') return Refuse("{,n}");
    if (end + 1 < rest_.size() && rest_[end + 1] == '+') return Refuse("{n,m}+");
    Copy(end + 1);
    return absl::OkStatus();
  }

  absl::string_view rest_;
  const absl::string_view pattern_;
  int class_depth_ = 0;  // 0: outside
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(absl::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace pagoda::engine
