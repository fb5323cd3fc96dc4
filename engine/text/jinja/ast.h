#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/value.h"

namespace pagoda::engine::jinja {

enum class NodeKind {
  // Expressions. Children in order.
  kLiteral,      // constant
  kName,         // name
  kList,         // items
  kTuple,        // items
  kDict,         // key, value, key, value, ...
  kAttribute,    // object; name
  kSubscript,    // object, index
  kSlice,        // object, begin, end, step; absent parts are null
  kCall,         // callee, arguments...; keyword names in `names`, for the last arguments
  kFilter,       // operand, arguments...; name
  kTest,         // operand, arguments...; name; negated
  kUnary,        // operand; name "-", "+", "not"
  kBinary,       // left, right; name is the operator
  kConditional,  // value, condition, otherwise (null: undefined)
  // Statements.
  kText,    // constant: template data
  kOutput,  // expression
  kBlock,   // statements
  kIf,      // condition, block, otherwise (null: none)
  kFor,  // iterable, filter (null: none), block, otherwise (null: none); loop variables in `names`
  kSet,  // value; targets in `names`; attribute of a namespace in `name`
  kSetBlock,  // block; target in `names`
  kMacro,     // block, defaults of the last parameters...; name; parameters in `names`
  kBreak,
  kContinue,
};

// A node of a parsed template. Owned by its parent; immutable after parsing.
struct Node {
  NodeKind kind;
  int line = 0;
  std::string name;
  std::vector<std::string> names;
  bool negated = false;
  Value constant;
  std::vector<std::unique_ptr<Node>> children;
};

using NodePtr = std::unique_ptr<Node>;

}  // namespace pagoda::engine::jinja
