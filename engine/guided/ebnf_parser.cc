#include "engine/guided/ebnf_parser.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/guided/expression.h"
#include "engine/guided/pattern_scanner.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::guided {
namespace {

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
}

class EbnfParser {
 public:
  EbnfParser(absl::string_view text, Grammar* grammar)
      : text_(text), scanner_(text, grammar->limits()), grammar_(grammar) {}

  absl::Status Parse() {
    SkipBlank();
    while (!scanner_.at_end()) PAGODA_RETURN_IF_ERROR(Rule());
    for (const auto& [name, use] : rules_) {
      if (!use.is_defined)
        return scanner_.ErrorAt(use.position, absl::StrCat("rule ", name, " is not defined"));
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return absl::InvalidArgumentError("has no rule named root");
    grammar_->set_root(root->second.id);
    return grammar_->status();
  }

 private:
  struct RuleUse {
    RuleId id = 0;
    bool is_defined = false;
    size_t position = 0;
  };

  void SkipBlank() {
    while (!scanner_.at_end()) {
      if (scanner_.peek() == '#') {
        while (!scanner_.at_end() && scanner_.peek() != '\n') scanner_.Skip(1);
      } else if (absl::ascii_isspace(static_cast<unsigned char>(scanner_.peek()))) {
        scanner_.Skip(1);
      } else {
        return;
      }
    }
  }

  std::string Name() {
    const size_t begin = scanner_.position();
    while (IsNameCharacter(scanner_.peek())) scanner_.Skip(1);
    return std::string(text_.substr(begin, scanner_.position() - begin));
  }

  RuleUse& Use(const std::string& name, size_t position) {
    const auto [it, is_new] = rules_.try_emplace(name);
    if (is_new) it->second = {.id = grammar_->AddRule(name), .position = position};
    return it->second;
  }

  // True where "name ::=" begins.
  bool AtRule() {
    const size_t begin = scanner_.position();
    const bool is_rule = !Name().empty() && (SkipBlank(), scanner_.LookingAt("::="));
    scanner_.Rewind(begin);
    return is_rule;
  }

  absl::Status Rule() {
    const size_t begin = scanner_.position();
    if (!AtRule()) return scanner_.Error("expected a rule: name ::= ...");
    const std::string name = Name();
    RuleUse& use = Use(name, begin);
    if (use.is_defined)
      return scanner_.ErrorAt(begin, absl::StrCat("rule ", name, " is defined twice"));
    use.is_defined = true;
    const RuleId id = use.id;
    SkipBlank();
    scanner_.Take("::=");
    PAGODA_ASSIGN_OR_RETURN(const ExpressionPtr body, Alternatives(0));
    const StateId end = AddExpression(*body, Spelling::kPlain, grammar_->rule(id).start, grammar_);
    grammar_->AddEmpty(end, grammar_->rule(id).end);
    return grammar_->status();
  }

  absl::StatusOr<ExpressionPtr> Alternatives(int32_t depth) {
    if (depth > grammar_->limits().max_depth) {
      return scanner_.Error(
          absl::StrCat("groups are nested more than ", grammar_->limits().max_depth, " deep"));
    }
    auto choice = std::make_unique<Expression>();
    choice->kind = Expression::Kind::kChoice;
    do {
      auto sequence = std::make_unique<Expression>();
      SkipBlank();
      while (!scanner_.at_end() && scanner_.peek() != '|' && scanner_.peek() != ')' && !AtRule()) {
        PAGODA_ASSIGN_OR_RETURN(ExpressionPtr atom, Atom(depth));
        PAGODA_ASSIGN_OR_RETURN(atom, Quantified(std::move(atom)));
        sequence->children.push_back(std::move(atom));
        SkipBlank();
      }
      choice->children.push_back(std::move(sequence));
    } while (scanner_.Take("|"));
    if (depth == 0 && scanner_.peek() == ')') return scanner_.Error("unmatched )");
    return choice;
  }

  absl::StatusOr<ExpressionPtr> Quantified(ExpressionPtr atom) {
    while (true) {
      int32_t min = 0, max = kUnbounded;
      if (scanner_.Take("*")) {
      } else if (scanner_.Take("+")) {
        min = 1;
      } else if (scanner_.Take("?")) {
        max = 1;
      } else if (scanner_.Take("{")) {
        PAGODA_ASSIGN_OR_RETURN(min, scanner_.Count());
        max = min;
        if (scanner_.Take(",")) {
          max = kUnbounded;
          if (scanner_.peek() != '}') {
            PAGODA_ASSIGN_OR_RETURN(max, scanner_.Count());
          }
        }
        if (max != kUnbounded && max < min)
          return scanner_.Error("the upper bound is below the lower");
        if (!scanner_.Take("}")) return scanner_.Error("missing }");
      } else {
        return atom;
      }
      if (++num_quantifiers_ > grammar_->limits().max_depth * 1024) {
        return scanner_.Error("too many quantifiers");
      }
      // Quantifiers of quantifiers nest: a** is (a*)*.
      if (atom->kind == Expression::Kind::kRepeat) {
        return scanner_.Error("a quantifier follows a quantifier; use parentheses");
      }
      atom = MakeRepeat(std::move(atom), min, max);
    }
  }

  absl::StatusOr<ExpressionPtr> Atom(int32_t depth) {
    const char c = scanner_.peek();
    if (c == '"' || c == '\'') return Literal();
    if (c == '[') {
      PAGODA_ASSIGN_OR_RETURN(CodePointSet set, Class());
      return MakeSet(std::move(set));
    }
    if (c == '.') {
      scanner_.Skip(1);
      return MakeSet(CodePointSet::All());
    }
    if (c == '(') {
      const size_t begin = scanner_.position();
      scanner_.Skip(1);
      PAGODA_ASSIGN_OR_RETURN(ExpressionPtr inside, Alternatives(depth + 1));
      if (!scanner_.Take(")")) return scanner_.ErrorAt(begin, "missing )");
      // A group of its own, so that a quantifier after it is no second one.
      auto group = std::make_unique<Expression>();
      group->children.push_back(std::move(inside));
      return group;
    }
    if (IsNameCharacter(c)) {
      const size_t begin = scanner_.position();
      const std::string name = Name();
      auto call = std::make_unique<Expression>();
      call->kind = Expression::Kind::kRule;
      call->rule = Use(name, begin).id;
      return call;
    }
    return scanner_.Error("expected a literal, a class, a group or a rule's name");
  }

  absl::StatusOr<uint32_t> Escaped() {
    scanner_.Skip(1);
    const char kind = scanner_.peek();
    if (kind != '\0') scanner_.Skip(1);
    switch (kind) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return scanner_.Hex(2);
      case 'u':
        return scanner_.Hex(4);
      case 'U':
        return scanner_.Hex(8);
      default:
        break;
    }
    if (kind == '\0' || absl::ascii_isalnum(static_cast<unsigned char>(kind)) ||
        static_cast<unsigned char>(kind) >= 0x80) {
      return scanner_.Error("this escape is not supported");
    }
    return static_cast<uint32_t>(kind);
  }

  absl::StatusOr<ExpressionPtr> Literal() {
    const size_t begin = scanner_.position();
    const char quote = scanner_.peek();
    scanner_.Skip(1);
    auto sequence = std::make_unique<Expression>();
    while (scanner_.peek() != quote) {
      if (scanner_.at_end() || scanner_.peek() == '\n')
        return scanner_.ErrorAt(begin, "the literal has no end");
      PAGODA_ASSIGN_OR_RETURN(const uint32_t c,
                              scanner_.peek() == '\\' ? Escaped() : scanner_.Character());
      sequence->children.push_back(MakeSet(CodePointSet({{c, c}})));
    }
    scanner_.Skip(1);
    return sequence;
  }

  absl::StatusOr<CodePointSet> Class() {
    const size_t begin = scanner_.position();
    scanner_.Skip(1);
    const bool is_negated = scanner_.Take("^");
    std::vector<CodePointSet::Range> ranges;
    while (!scanner_.Take("]")) {
      if (scanner_.at_end()) return scanner_.ErrorAt(begin, "missing ]");
      const auto member = [this] {
        return scanner_.peek() == '\\' ? Escaped() : scanner_.Character();
      };
      PAGODA_ASSIGN_OR_RETURN(const uint32_t low, member());
      uint32_t high = low;
      if (scanner_.peek() == '-' && !scanner_.LookingAt("-]")) {
        scanner_.Skip(1);
        PAGODA_ASSIGN_OR_RETURN(high, member());
      }
      if (high < low) return scanner_.ErrorAt(begin, "holds a range that ends before it begins");
      ranges.emplace_back(low, high);
    }
    const CodePointSet set(std::move(ranges));
    return is_negated ? set.Complement() : set;
  }

  const absl::string_view text_;
  PatternScanner scanner_;
  Grammar* const grammar_;
  absl::flat_hash_map<std::string, RuleUse> rules_;
  int64_t num_quantifiers_ = 0;
};

}  // namespace

absl::Status ParseEbnf(absl::string_view text, Grammar* grammar) {
  return EbnfParser(text, grammar).Parse();
}

}  // namespace pagoda::engine::guided
