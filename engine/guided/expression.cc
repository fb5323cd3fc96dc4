#include "engine/guided/expression.h"

#include <algorithm>
#include <utility>

namespace pagoda::engine::guided {
namespace {

// A repetition of up to so many parts is written out: its states can be merged with others. More
// become a call that counts.
constexpr int64_t kMaxWrittenOut = 64;

int64_t Size(const Expression& expression) {
  if (expression.kind == Expression::Kind::kSet || expression.kind == Expression::Kind::kRule)
    return 1;
  int64_t size = 1;
  for (const ExpressionPtr& child : expression.children) size += Size(*child);
  if (expression.kind == Expression::Kind::kRepeat) {
    size *= std::max<int64_t>({1, expression.min, expression.max});
  }
  return std::min<int64_t>(size, kMaxWrittenOut + 1);
}

class Writer {
 public:
  Writer(Spelling spelling, Grammar* grammar) : spelling_(spelling), grammar_(grammar) {}

  StateId Add(const Expression& expression, StateId from) {
    if (!grammar_->status().ok()) return from;
    switch (expression.kind) {
      case Expression::Kind::kSet:
        return spelling_ == Spelling::kJson ? AddJsonCharacter(expression.set, from, grammar_)
                                            : AddCharacter(expression.set, from, grammar_);
      case Expression::Kind::kRule:
        return grammar_->Call(from, expression.rule);
      case Expression::Kind::kSequence:
        for (const ExpressionPtr& child : expression.children) from = Add(*child, from);
        return from;
      case Expression::Kind::kChoice: {
        const StateId to = grammar_->AddState();
        for (const ExpressionPtr& child : expression.children)
          grammar_->AddEmpty(Add(*child, from), to);
        return to;
      }
      case Expression::Kind::kRepeat:
        return AddRepeat(*expression.children.front(), expression.min, expression.max, from);
    }
    return from;
  }

 private:
  StateId AddRepeat(const Expression& child, int32_t min, int32_t max, StateId from) {
    const int64_t most = max == kUnbounded ? min : max;
    if (Size(child) * most > kMaxWrittenOut && !(min == 1 && max == kUnbounded)) {
      const RuleId rule = grammar_->AddRule("a repetition");
      grammar_->AddEmpty(Add(child, grammar_->rule(rule).start), grammar_->rule(rule).end);
      return grammar_->Call(from, rule, min, max);
    }
    if (max == kUnbounded) {
      for (int32_t i = 1; i < min; ++i) from = Add(child, from);
      const StateId loop = grammar_->AddState(), to = grammar_->AddState();
      grammar_->AddEmpty(from, loop);
      const StateId end = Add(child, loop);
      grammar_->AddEmpty(end, loop);
      grammar_->AddEmpty(min == 0 ? loop : end, to);
      return to;
    }
    for (int32_t i = 0; i < min; ++i) from = Add(child, from);
    const StateId to = grammar_->AddState();
    for (int32_t i = min; i < max; ++i) {
      grammar_->AddEmpty(from, to);
      from = Add(child, from);
    }
    grammar_->AddEmpty(from, to);
    return to;
  }

  const Spelling spelling_;
  Grammar* const grammar_;
};

}  // namespace

ExpressionPtr MakeSet(CodePointSet set) {
  auto expression = std::make_unique<Expression>();
  expression->kind = Expression::Kind::kSet;
  expression->set = std::move(set);
  return expression;
}

ExpressionPtr MakeRepeat(ExpressionPtr child, int32_t min, int32_t max) {
  auto expression = std::make_unique<Expression>();
  expression->kind = Expression::Kind::kRepeat;
  expression->children.push_back(std::move(child));
  expression->min = min;
  expression->max = max;
  return expression;
}

StateId AddExpression(const Expression& expression,
                      Spelling spelling,
                      StateId from,
                      Grammar* grammar) {
  return Writer(spelling, grammar).Add(expression, from);
}

}  // namespace pagoda::engine::guided
