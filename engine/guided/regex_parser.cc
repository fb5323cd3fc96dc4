#include "engine/guided/regex_parser.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/guided/pattern_scanner.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::guided {
namespace {

const CodePointSet& Digits() {
  static const CodePointSet* const set = new CodePointSet({{'0', '9'}});
  return *set;
}
const CodePointSet& WordCharacters() {
  static const CodePointSet* const set =
      new CodePointSet({{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}});
  return *set;
}
const CodePointSet& Spaces() {
  static const CodePointSet* const set = new CodePointSet({{'\t', '\r'}, {' ', ' '}});
  return *set;
}

class RegexParser {
 public:
  RegexParser(absl::string_view pattern, RegexUse use, const Limits& limits)
      : scanner_(pattern, limits), use_(use), limits_(limits) {}

  absl::StatusOr<ExpressionPtr> Parse() {
    PAGODA_ASSIGN_OR_RETURN(ExpressionPtr expression, Alternatives(0));
    if (!scanner_.at_end()) return scanner_.Error("unmatched )");
    return expression;
  }

 private:
  absl::StatusOr<ExpressionPtr> Alternatives(int32_t depth) {
    if (depth > limits_.max_depth) {
      return scanner_.Error(
          absl::StrCat("groups are nested more than ", limits_.max_depth, " deep"));
    }
    auto choice = std::make_unique<Expression>();
    choice->kind = Expression::Kind::kChoice;
    do {
      PAGODA_ASSIGN_OR_RETURN(ExpressionPtr branch, Branch(depth));
      choice->children.push_back(std::move(branch));
    } while (scanner_.Take("|"));
    if (choice->children.size() == 1) return std::move(choice->children.front());
    return choice;
  }

  absl::StatusOr<ExpressionPtr> Branch(int32_t depth) {
    auto sequence = std::make_unique<Expression>();
    const bool searches = depth == 0 && use_ == RegexUse::kSchemaPattern;
    const bool is_anchored = depth == 0 && scanner_.Take("^");
    if (searches && !is_anchored) sequence->children.push_back(AnyText());
    bool ends_anchored = false;
    while (!scanner_.at_end() && scanner_.peek() != '|' && scanner_.peek() != ')') {
      if (depth == 0 && scanner_.Take("$")) {
        if (!scanner_.at_end() && scanner_.peek() != '|')
          return scanner_.Error("$ is supported at the end of an alternative alone");
        ends_anchored = true;
        break;
      }
      PAGODA_ASSIGN_OR_RETURN(ExpressionPtr atom, Atom(depth));
      PAGODA_ASSIGN_OR_RETURN(atom, Quantified(std::move(atom)));
      sequence->children.push_back(std::move(atom));
    }
    if (searches && !ends_anchored) sequence->children.push_back(AnyText());
    return sequence;
  }

  static ExpressionPtr AnyText() { return MakeRepeat(MakeSet(CodePointSet::All()), 0, kUnbounded); }

  absl::StatusOr<ExpressionPtr> Quantified(ExpressionPtr atom) {
    int32_t min = 0, max = kUnbounded;
    if (scanner_.Take("*")) {
    } else if (scanner_.Take("+")) {
      min = 1;
    } else if (scanner_.Take("?")) {
      max = 1;
    } else if (scanner_.peek() == '{') {
      PAGODA_ASSIGN_OR_RETURN(const bool is_count, Braces(&min, &max));
      if (!is_count) return atom;
    } else {
      return atom;
    }
    scanner_.Take("?");  // lazy: the same texts
    const char next = scanner_.peek();
    if (next == '*' || next == '+' || next == '?') {
      return scanner_.Error("a quantifier follows a quantifier");
    }
    if (next == '{') {
      const size_t begin = scanner_.position();
      int32_t ignored = 0;
      PAGODA_ASSIGN_OR_RETURN(const bool is_count, Braces(&ignored, &ignored));
      if (is_count) return scanner_.ErrorAt(begin, "a quantifier follows a quantifier");
    }
    return MakeRepeat(std::move(atom), min, max);
  }

  // {m}, {m,} and {m,n}; anything else is a literal brace.
  absl::StatusOr<bool> Braces(int32_t* min, int32_t* max) {
    const size_t begin = scanner_.position();
    scanner_.Skip(1);
    if (!absl::ascii_isdigit(static_cast<unsigned char>(scanner_.peek()))) {
      scanner_.Rewind(begin);
      return false;
    }
    PAGODA_ASSIGN_OR_RETURN(*min, scanner_.Count());
    *max = *min;
    if (scanner_.Take(",")) {
      *max = kUnbounded;
      if (absl::ascii_isdigit(static_cast<unsigned char>(scanner_.peek()))) {
        PAGODA_ASSIGN_OR_RETURN(*max, scanner_.Count());
      }
    }
    if (!scanner_.Take("}")) {
      scanner_.Rewind(begin);
      return false;
    }
    if (*max != kUnbounded && *max < *min) {
      return scanner_.ErrorAt(begin, "the upper bound is below the lower");
    }
    return true;
  }

  absl::StatusOr<ExpressionPtr> Atom(int32_t depth) {
    switch (scanner_.peek()) {
      case '(':
        return Group(depth);
      case '[': {
        PAGODA_ASSIGN_OR_RETURN(CodePointSet set, Class());
        return MakeSet(std::move(set));
      }
      case '.': {
        scanner_.Skip(1);
        CodePointSet excluded({{'\n', '\n'}});
        if (use_ == RegexUse::kSchemaPattern)
          excluded = CodePointSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
        return MakeSet(excluded.Complement());
      }
      case '*':
      case '+':
      case '?':
        return scanner_.Error("nothing to repeat");
      case '^':
      case '$':
        return scanner_.Error(
            "anchors are supported at the ends of the whole pattern's alternatives alone");
      case '\\': {
        PAGODA_ASSIGN_OR_RETURN(CodePointSet set, Escape(/*in_class=*/false));
        return MakeSet(std::move(set));
      }
      default:
        break;
    }
    PAGODA_ASSIGN_OR_RETURN(const uint32_t c, scanner_.Character());
    return MakeSet(CodePointSet({{c, c}}));
  }

  absl::StatusOr<ExpressionPtr> Group(int32_t depth) {
    const size_t begin = scanner_.position();
    scanner_.Skip(1);
    if (scanner_.Take("?")) {
      const bool is_named =
          scanner_.Take("P<") || (scanner_.LookingAt("<") && !scanner_.LookingAt("<=") &&
                                  !scanner_.LookingAt("<!") && scanner_.Take("<"));
      if (is_named) {
        while (!scanner_.at_end() && scanner_.peek() != '>') scanner_.Skip(1);
        if (!scanner_.Take(">")) return scanner_.ErrorAt(begin, "the group's name has no end");
      } else if (!scanner_.Take(":")) {
        return scanner_.ErrorAt(begin, "look-around and flags are not supported");
      }
    }
    PAGODA_ASSIGN_OR_RETURN(ExpressionPtr inside, Alternatives(depth + 1));
    if (!scanner_.Take(")")) return scanner_.ErrorAt(begin, "missing )");
    return inside;
  }

  CodePointSet Opposite(const CodePointSet& set) const {
    const CodePointSet rest = set.Complement();
    return use_ == RegexUse::kSchemaPattern ? rest.Intersect(CodePointSet({{0, 0x7F}})) : rest;
  }

  absl::StatusOr<CodePointSet> Escape(bool in_class) {
    const size_t begin = scanner_.position();
    scanner_.Skip(1);
    const char kind = scanner_.peek();
    const auto one = [](uint32_t c) { return CodePointSet({{c, c}}); };
    if (kind != '\0') scanner_.Skip(1);
    switch (kind) {
      case 'd':
        return Digits();
      case 'D':
        return Opposite(Digits());
      case 'w':
        return WordCharacters();
      case 'W':
        return Opposite(WordCharacters());
      case 's':
        return Spaces();
      case 'S':
        return Opposite(Spaces());
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        if (absl::ascii_isdigit(static_cast<unsigned char>(scanner_.peek()))) break;
        return one(0);
      case 'x': {
        PAGODA_ASSIGN_OR_RETURN(const uint32_t c, scanner_.Hex(2));
        return one(c);
      }
      case 'u': {
        PAGODA_ASSIGN_OR_RETURN(const uint32_t c, scanner_.Hex(4));
        return one(c);
      }
      case 'b':
        if (in_class) return one('\b');
        break;
      default:
        break;
    }
    if (absl::ascii_isalnum(static_cast<unsigned char>(kind)) || kind == '\0' ||
        static_cast<unsigned char>(kind) >= 0x80) {
      return scanner_.ErrorAt(begin, "this escape is not supported");
    }
    return one(static_cast<uint32_t>(kind));
  }

  absl::StatusOr<CodePointSet> Class() {
    const size_t begin = scanner_.position();
    scanner_.Skip(1);
    const bool is_negated = scanner_.Take("^");
    std::vector<CodePointSet::Range> ranges;
    if (scanner_.peek() == ']') return scanner_.Error("an empty class is not supported; write \\]");
    while (!scanner_.Take("]")) {
      if (scanner_.at_end()) return scanner_.ErrorAt(begin, "missing ]");
      if (scanner_.LookingAt("[:") || scanner_.LookingAt("[=") || scanner_.LookingAt("[.")) {
        return scanner_.Error("named classes are not supported");
      }
      const size_t at = scanner_.position();
      PAGODA_ASSIGN_OR_RETURN(const CodePointSet low, ClassMember());
      if (scanner_.peek() == '-' && !scanner_.LookingAt("-]")) {
        scanner_.Skip(1);
        PAGODA_ASSIGN_OR_RETURN(const CodePointSet high, ClassMember());
        const auto is_one = [](const CodePointSet& set) {
          return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].second;
        };
        if (!is_one(low) || !is_one(high) || high.ranges()[0].first < low.ranges()[0].first) {
          return scanner_.ErrorAt(at, "not a range of characters");
        }
        ranges.emplace_back(low.ranges()[0].first, high.ranges()[0].first);
        continue;
      }
      ranges.insert(ranges.end(), low.ranges().begin(), low.ranges().end());
    }
    const CodePointSet set(std::move(ranges));
    return is_negated ? set.Complement() : set;
  }

  absl::StatusOr<CodePointSet> ClassMember() {
    if (scanner_.peek() == '\\') return Escape(/*in_class=*/true);
    PAGODA_ASSIGN_OR_RETURN(const uint32_t c, scanner_.Character());
    return CodePointSet({{c, c}});
  }

  PatternScanner scanner_;
  const RegexUse use_;
  const Limits& limits_;
};

}  // namespace

absl::StatusOr<ExpressionPtr> ParseRegex(absl::string_view pattern,
                                         RegexUse use,
                                         const Limits& limits) {
  return RegexParser(pattern, use, limits).Parse();
}

}  // namespace pagoda::engine::guided
