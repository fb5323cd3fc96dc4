#include "engine/text/jinja/expression_parser.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/predicates.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::jinja {
namespace {

// Loosest operators first.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenCursor* cursor) : cursor_(cursor) {}

  absl::StatusOr<NodePtr> ParseTuple(bool with_conditional) {
    PAGODA_ASSIGN_OR_RETURN(NodePtr first, with_conditional ? ParseExpression() : ParseOr());
    if (!cursor_->PeekOp(",")) return first;
    NodePtr tuple = cursor_->New(NodeKind::kTuple, "", std::move(first));
    while (cursor_->TakeOp(",")) {
      if (cursor_->PeekOp(")") || cursor_->Peek().kind == TokenKind::kBlockEnd ||
          cursor_->Peek().kind == TokenKind::kOutputEnd)
        break;
      PAGODA_ASSIGN_OR_RETURN(NodePtr item, with_conditional ? ParseExpression() : ParseOr());
      tuple->children.push_back(std::move(item));
    }
    return tuple;
  }

  absl::StatusOr<NodePtr> ParseExpression() {
    const TokenCursor::Depth depth(cursor_);
    if (depth.is_too_deep()) return cursor_->Error("nested too deeply");
    PAGODA_ASSIGN_OR_RETURN(NodePtr value, ParseOr());
    while (cursor_->TakeWord("if")) {
      PAGODA_RETURN_IF_ERROR(cursor_->CountOperator());
      NodePtr conditional = cursor_->New(NodeKind::kConditional, "", std::move(value));
      PAGODA_ASSIGN_OR_RETURN(NodePtr condition, ParseOr());
      NodePtr otherwise;
      if (cursor_->TakeWord("else")) {
        PAGODA_ASSIGN_OR_RETURN(otherwise, ParseExpression());
      }
      conditional->children.push_back(std::move(condition));
      conditional->children.push_back(std::move(otherwise));
      value = std::move(conditional);
    }
    return value;
  }

 private:
  using Level = absl::StatusOr<NodePtr> (ExpressionParser::*)();

  absl::StatusOr<NodePtr> ParseBinary(Level next,
                                      TokenKind kind,
                                      std::initializer_list<absl::string_view> operators) {
    PAGODA_ASSIGN_OR_RETURN(NodePtr left, (this->*next)());
    while (true) {
      bool found = false;
      for (absl::string_view op : operators) {
        if (!cursor_->PeekIs(kind, op)) continue;
        cursor_->Skip();
        PAGODA_RETURN_IF_ERROR(cursor_->CountOperator());
        NodePtr binary = cursor_->New(NodeKind::kBinary, std::string(op), std::move(left));
        PAGODA_ASSIGN_OR_RETURN(NodePtr right, (this->*next)());
        binary->children.push_back(std::move(right));
        left = std::move(binary);
        found = true;
        break;
      }
      if (!found) return left;
    }
  }

  absl::StatusOr<NodePtr> ParseOr() {
    return ParseBinary(&ExpressionParser::ParseAnd, TokenKind::kName, {"or"});
  }
  absl::StatusOr<NodePtr> ParseAnd() {
    return ParseBinary(&ExpressionParser::ParseNot, TokenKind::kName, {"and"});
  }

  absl::StatusOr<NodePtr> ParseNot() {
    if (!cursor_->TakeWord("not")) return ParseComparison();
    const TokenCursor::Depth depth(cursor_);
    if (depth.is_too_deep()) return cursor_->Error("nested too deeply");
    PAGODA_ASSIGN_OR_RETURN(NodePtr operand, ParseNot());
    return cursor_->New(NodeKind::kUnary, "not", std::move(operand));
  }

  // Chained: a < b < c is a < b and b < c.
  absl::StatusOr<NodePtr> ParseComparison() {
    PAGODA_ASSIGN_OR_RETURN(NodePtr left, ParseSum());
    NodePtr chain = cursor_->New(NodeKind::kBinary, "compare", std::move(left));
    while (true) {
      std::string op;
      for (absl::string_view candidate : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (cursor_->TakeOp(candidate)) op = std::string(candidate);
        if (!op.empty()) break;
      }
      if (op.empty() && cursor_->TakeWord("in")) op = "in";
      if (op.empty() && cursor_->PeekWord("not") && cursor_->Peek(1).kind == TokenKind::kName &&
          cursor_->Peek(1).text == "in") {
        cursor_->Skip(2);
        op = "not in";
      }
      if (op.empty()) break;
      PAGODA_ASSIGN_OR_RETURN(NodePtr right, ParseSum());
      chain->names.push_back(op);
      chain->children.push_back(std::move(right));
    }
    if (chain->names.empty()) return std::move(chain->children[0]);
    return chain;
  }

  absl::StatusOr<NodePtr> ParseSum() {
    return ParseBinary(&ExpressionParser::ParseConcat, TokenKind::kOperator, {"+", "-"});
  }
  absl::StatusOr<NodePtr> ParseConcat() {
    return ParseBinary(&ExpressionParser::ParseProduct, TokenKind::kOperator, {"~"});
  }
  absl::StatusOr<NodePtr> ParseProduct() {
    return ParseBinary(&ExpressionParser::ParsePower, TokenKind::kOperator, {"*", "/", "//", "%"});
  }
  absl::StatusOr<NodePtr> ParsePower() {
    return ParseBinary(&ExpressionParser::ParseUnary, TokenKind::kOperator, {"**"});
  }

  // A sign binds more tightly than filters and tests, which belong to all of -x.
  absl::StatusOr<NodePtr> ParseUnary() {
    PAGODA_ASSIGN_OR_RETURN(NodePtr operand, ParseSigned());
    return ParseFilters(std::move(operand));
  }

  absl::StatusOr<NodePtr> ParseSigned() {
    for (absl::string_view op : {"-", "+"}) {
      if (!cursor_->TakeOp(op)) continue;
      const TokenCursor::Depth depth(cursor_);
      if (depth.is_too_deep()) return cursor_->Error("nested too deeply");
      PAGODA_ASSIGN_OR_RETURN(NodePtr operand, ParseSigned());
      return cursor_->New(NodeKind::kUnary, std::string(op), std::move(operand));
    }
    PAGODA_ASSIGN_OR_RETURN(NodePtr primary, ParsePrimary());
    return ParsePostfix(std::move(primary));
  }

  absl::StatusOr<NodePtr> ParsePrimary() {
    const Token& token = cursor_->Peek();
    NodePtr node = cursor_->New(NodeKind::kLiteral);
    switch (token.kind) {
      case TokenKind::kString: {
        std::string text = cursor_->Next().text;
        // Adjacent strings are one.
        while (cursor_->Peek().kind == TokenKind::kString) text += cursor_->Next().text;
        node->constant = Value::Trusted(std::move(text));
        return node;
      }
      case TokenKind::kInt: {
        int64_t value = 0;
        if (!absl::SimpleAtoi(token.text, &value))
          return cursor_->Error(absl::StrCat("the number ", token.text, " is too large"));
        cursor_->Skip();
        node->constant = Value::Int(value);
        return node;
      }
      case TokenKind::kFloat: {
        double value = 0;
        if (!absl::SimpleAtod(token.text, &value))
          return cursor_->Error(absl::StrCat("the number ", token.text, " is malformed"));
        cursor_->Skip();
        node->constant = Value::Float(value);
        return node;
      }
      case TokenKind::kName:
        return ParseName();
      default:
        break;
    }
    if (cursor_->TakeOp("(")) return ParseParenthesis();
    if (cursor_->TakeOp("[")) return ParseList();
    if (cursor_->TakeOp("{")) return ParseDict();
    return cursor_->Expected("an expression");
  }

  absl::StatusOr<NodePtr> ParseName() {
    NodePtr node = cursor_->New(NodeKind::kLiteral);
    const std::string name = cursor_->Next().text;
    if (name == "true" || name == "True") {
      node->constant = Value::Bool(true);
    } else if (name == "false" || name == "False") {
      node->constant = Value::Bool(false);
    } else if (name == "none" || name == "None") {
      node->constant = Value::NoneValue();
    } else {
      node->kind = NodeKind::kName;
      node->name = name;
    }
    return node;
  }

  absl::StatusOr<NodePtr> ParseParenthesis() {
    if (cursor_->TakeOp(")")) return cursor_->New(NodeKind::kTuple);
    PAGODA_ASSIGN_OR_RETURN(NodePtr inner, ParseTuple(/*with_conditional=*/true));
    PAGODA_RETURN_IF_ERROR(cursor_->ExpectOp(")"));
    return inner;
  }

  absl::StatusOr<NodePtr> ParseList() {
    NodePtr list = cursor_->New(NodeKind::kList);
    while (!cursor_->TakeOp("]")) {
      if (!list->children.empty()) {
        PAGODA_RETURN_IF_ERROR(cursor_->ExpectOp(","));
        if (cursor_->TakeOp("]")) break;
      }
      PAGODA_ASSIGN_OR_RETURN(NodePtr item, ParseExpression());
      list->children.push_back(std::move(item));
    }
    return list;
  }

  absl::StatusOr<NodePtr> ParseDict() {
    NodePtr dict = cursor_->New(NodeKind::kDict);
    while (!cursor_->TakeOp("}")) {
      if (!dict->children.empty()) {
        PAGODA_RETURN_IF_ERROR(cursor_->ExpectOp(","));
        if (cursor_->TakeOp("}")) break;
      }
      PAGODA_ASSIGN_OR_RETURN(NodePtr key, ParseExpression());
      PAGODA_RETURN_IF_ERROR(cursor_->ExpectOp(":"));
      PAGODA_ASSIGN_OR_RETURN(NodePtr value, ParseExpression());
      dict->children.push_back(std::move(key));
      dict->children.push_back(std::move(value));
    }
    return dict;
  }

  // .name, [index], (arguments). The chain is a loop, but its tree is as deep as it is long.
  absl::StatusOr<NodePtr> ParsePostfix(NodePtr node) {
    for (int length = 0;; ++length) {
      if (length > 0) PAGODA_RETURN_IF_ERROR(cursor_->CountOperator());
      if (length > kMaxDepth) return cursor_->Error("an expression is too long");
      if (cursor_->TakeOp(".")) {
        if (cursor_->Peek().kind == TokenKind::kInt) {
          NodePtr subscript = cursor_->New(NodeKind::kSubscript, "", std::move(node));
          PAGODA_ASSIGN_OR_RETURN(NodePtr index, ParsePrimary());
          subscript->children.push_back(std::move(index));
          node = std::move(subscript);
          continue;
        }
        PAGODA_ASSIGN_OR_RETURN(std::string name, cursor_->ExpectName());
        node = cursor_->New(NodeKind::kAttribute, std::move(name), std::move(node));
      } else if (cursor_->TakeOp("[")) {
        PAGODA_ASSIGN_OR_RETURN(node, ParseSubscript(std::move(node)));
      } else if (cursor_->TakeOp("(")) {
        node = cursor_->New(NodeKind::kCall, "", std::move(node));
        PAGODA_RETURN_IF_ERROR(ParseArguments(node.get()));
      } else {
        return node;
      }
    }
  }

  // | filter, is test, (arguments) of what they give.
  absl::StatusOr<NodePtr> ParseFilters(NodePtr node) {
    for (int length = 0;; ++length) {
      if (length > 0) PAGODA_RETURN_IF_ERROR(cursor_->CountOperator());
      if (length > kMaxDepth) return cursor_->Error("an expression is too long");
      if (cursor_->TakeOp("|")) {
        PAGODA_ASSIGN_OR_RETURN(std::string name, cursor_->ExpectName());
        if (!IsFilter(name)) return cursor_->Error(absl::StrCat("no filter named '", name, "'"));
        node = cursor_->New(NodeKind::kFilter, std::move(name), std::move(node));
        if (cursor_->TakeOp("(")) PAGODA_RETURN_IF_ERROR(ParseArguments(node.get()));
      } else if (cursor_->TakeWord("is")) {
        PAGODA_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
      } else if (cursor_->TakeOp("(")) {
        node = cursor_->New(NodeKind::kCall, "", std::move(node));
        PAGODA_RETURN_IF_ERROR(ParseArguments(node.get()));
      } else {
        return node;
      }
    }
  }

  absl::StatusOr<NodePtr> ParseTest(NodePtr operand) {
    const bool negated = cursor_->TakeWord("not");
    PAGODA_ASSIGN_OR_RETURN(std::string name, cursor_->ExpectName());
    if (!IsPredicate(name)) return cursor_->Error(absl::StrCat("no test named '", name, "'"));
    NodePtr node = cursor_->New(NodeKind::kTest, std::move(name), std::move(operand));
    node->negated = negated;
    if (cursor_->TakeOp("(")) {
      PAGODA_RETURN_IF_ERROR(ParseArguments(node.get()));
    } else if (cursor_->Peek().kind == TokenKind::kString ||
               cursor_->Peek().kind == TokenKind::kInt ||
               cursor_->Peek().kind == TokenKind::kFloat || cursor_->PeekOp("[") ||
               cursor_->PeekOp("{") ||
               (cursor_->Peek().kind == TokenKind::kName && !cursor_->PeekWord("else") &&
                !cursor_->PeekWord("or") && !cursor_->PeekWord("and") && !cursor_->PeekWord("if") &&
                !cursor_->PeekWord("is") && !cursor_->PeekWord("in") &&
                !cursor_->PeekWord("not"))) {
      // One argument without parentheses.
      PAGODA_ASSIGN_OR_RETURN(NodePtr argument, ParsePrimary());
      PAGODA_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
      node->children.push_back(std::move(argument));
    }
    return node;
  }

  absl::StatusOr<NodePtr> ParseSubscript(NodePtr object) {
    NodePtr parts[3];
    bool is_slice = false;
    for (int i = 0; i < 3; ++i) {
      if (!cursor_->PeekOp(":") && !cursor_->PeekOp("]")) {
        PAGODA_ASSIGN_OR_RETURN(parts[i], ParseExpression());
      }
      if (!cursor_->TakeOp(":")) break;
      is_slice = true;
    }
    PAGODA_RETURN_IF_ERROR(cursor_->ExpectOp("]"));
    NodePtr node =
        cursor_->New(is_slice ? NodeKind::kSlice : NodeKind::kSubscript, "", std::move(object));
    if (!is_slice && parts[0] == nullptr) return cursor_->Expected("an index");
    node->children.push_back(std::move(parts[0]));
    if (is_slice) {
      node->children.push_back(std::move(parts[1]));
      node->children.push_back(std::move(parts[2]));
    }
    return node;
  }

  absl::Status ParseArguments(Node* call) {
    bool first = true;
    while (!cursor_->TakeOp(")")) {
      if (!first) {
        PAGODA_RETURN_IF_ERROR(cursor_->ExpectOp(","));
        if (cursor_->TakeOp(")")) break;
      }
      first = false;
      if (cursor_->PeekOp("*") || cursor_->PeekOp("**"))
        return cursor_->Error("unpacked arguments are not supported");
      if (cursor_->Peek().kind == TokenKind::kName &&
          cursor_->Peek(1).kind == TokenKind::kOperator && cursor_->Peek(1).text == "=") {
        call->names.push_back(cursor_->Next().text);
        cursor_->Skip();
      } else if (!call->names.empty()) {
        return cursor_->Error("a positional argument follows a keyword argument");
      }
      PAGODA_ASSIGN_OR_RETURN(NodePtr argument, ParseExpression());
      call->children.push_back(std::move(argument));
    }
    return absl::OkStatus();
  }

  TokenCursor* const cursor_;
};

}  // namespace

absl::StatusOr<NodePtr> ParseExpression(TokenCursor* cursor) {
  return ExpressionParser(cursor).ParseExpression();
}

absl::StatusOr<NodePtr> ParseTuple(TokenCursor* cursor, bool with_conditional) {
  return ExpressionParser(cursor).ParseTuple(with_conditional);
}

}  // namespace pagoda::engine::jinja
