#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/guided/code_points.h"
#include "engine/guided/grammar.h"

namespace pagoda::engine::guided {

// What regular expressions and grammars are parsed to before they become states.
struct Expression {
  enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat, kRule };
  Kind kind = Kind::kSequence;
  CodePointSet set;                                   // kSet: one character
  std::vector<std::unique_ptr<Expression>> children;  // kRepeat: one
  int32_t min = 0, max = kUnbounded;                  // kRepeat
  RuleId rule = 0;                                    // kRule
};

using ExpressionPtr = std::unique_ptr<Expression>;

ExpressionPtr MakeSet(CodePointSet set);
ExpressionPtr MakeRepeat(ExpressionPtr child, int32_t min, int32_t max);

// How characters become bytes.
enum class Spelling : uint8_t { kPlain, kJson };

// Adds the states of `expression`; recursion is as deep as the expression.
StateId AddExpression(const Expression& expression,
                      Spelling spelling,
                      StateId from,
                      Grammar* grammar);

}  // namespace pagoda::engine::guided
