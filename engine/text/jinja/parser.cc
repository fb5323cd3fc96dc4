#include "engine/text/jinja/parser.h"

#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/predicates.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::jinja {
namespace {

// Nesting of a template, of expressions and statements together: deeper ones are refused, since
// parsing recurses.
constexpr int kMaxDepth = 200;
// Operators in a row nest to the left: their tree is as high as they are many.
constexpr int kMaxOperators = 1000;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<NodePtr> Run() {
    PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({}));
    return block;
  }

 private:
  // ---- Tokens.
  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& Next() { return tokens_[std::min(at_++, tokens_.size() - 1)]; }
  bool PeekIs(TokenKind kind, absl::string_view text) const {
    return Peek().kind == kind && Peek().text == text;
  }
  bool PeekOp(absl::string_view op) const { return PeekIs(TokenKind::kOperator, op); }
  bool PeekWord(absl::string_view word) const { return PeekIs(TokenKind::kName, word); }
  bool TakeOp(absl::string_view op) { return PeekOp(op) && (++at_, true); }
  bool TakeWord(absl::string_view word) { return PeekWord(word) && (++at_, true); }

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("chat template, line ", Peek().line, ": ", what));
  }
  absl::Status Expected(absl::string_view what) const {
    const std::string found =
        Peek().text.empty() ? "the end of the tag" : absl::StrCat("'", Peek().text, "'");
    return Error(absl::StrCat("expected ", what, ", found ", found));
  }
  absl::Status ExpectOp(absl::string_view op) {
    return TakeOp(op) ? absl::OkStatus() : Expected(absl::StrCat("'", op, "'"));
  }
  absl::Status ExpectBlockEnd() {
    if (Peek().kind != TokenKind::kBlockEnd) return Expected("%}");
    ++at_;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> ExpectName() {
    if (Peek().kind != TokenKind::kName) return Expected("a name");
    return Next().text;
  }

  NodePtr New(NodeKind kind) const {
    NodePtr node = std::make_unique<Node>();
    node->kind = kind;
    node->line = Peek().line;
    return node;
  }
  NodePtr New(NodeKind kind, std::string name, NodePtr child) const {
    NodePtr node = New(kind);
    node->name = std::move(name);
    node->children.push_back(std::move(child));
    return node;
  }

  // Counts nesting for as long as it lives.
  struct Depth {
    explicit Depth(int* depth) : depth(depth) { ++*depth; }
    ~Depth() { --*depth; }
    int* depth;
  };

  absl::Status CountOperator() {
    if (++num_operators_ > kMaxOperators) return Error("an expression is too long");
    return absl::OkStatus();
  }

  // ---- Statements.
  // Up to a block tag whose word is in `ends` (left to the caller, past "{%"), or to the end where
  // there is none.
  absl::StatusOr<NodePtr> ParseBlock(std::initializer_list<absl::string_view> ends) {
    const Depth guard(&depth_);
    if (depth_ > kMaxDepth) return Error("nested too deeply");
    NodePtr block = New(NodeKind::kBlock);
    while (true) {
      num_operators_ = 0;
      const Token& token = Peek();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() > 0) return Error(absl::StrCat("missing {% ", *(ends.end() - 1), " %}"));
        return block;
      }
      if (token.kind == TokenKind::kText) {
        NodePtr text = New(NodeKind::kText);
        text->constant = Value::Trusted(Next().text);
        block->children.push_back(std::move(text));
      } else if (token.kind == TokenKind::kOutputBegin) {
        ++at_;
        PAGODA_ASSIGN_OR_RETURN(NodePtr expression, ParseTupleOrExpression());
        if (Peek().kind != TokenKind::kOutputEnd) return Expected("}}");
        ++at_;
        block->children.push_back(New(NodeKind::kOutput, "", std::move(expression)));
      } else {
        ++at_;
        for (absl::string_view end : ends) {
          if (PeekWord(end)) return block;
        }
        PAGODA_ASSIGN_OR_RETURN(NodePtr statement, ParseStatement());
        block->children.push_back(std::move(statement));
      }
    }
  }

  absl::StatusOr<NodePtr> ParseStatement() {
    if (TakeWord("if")) return ParseIf();
    if (TakeWord("for")) return ParseFor();
    if (TakeWord("set")) return ParseSet();
    if (TakeWord("macro")) return ParseMacro();
    if (TakeWord("break")) return ParseWordStatement(NodeKind::kBreak);
    if (TakeWord("continue")) return ParseWordStatement(NodeKind::kContinue);
    // Marks which text the assistant wrote, for training; nothing to do here.
    if (TakeWord("generation")) {
      PAGODA_RETURN_IF_ERROR(ExpectBlockEnd());
      PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({"endgeneration"}));
      PAGODA_RETURN_IF_ERROR(EndStatement("endgeneration"));
      return block;
    }
    return Error(absl::StrCat("the statement '", Peek().text, "' is not supported"));
  }

  absl::StatusOr<NodePtr> ParseWordStatement(NodeKind kind) {
    if (loop_depth_ == 0) return Error("break or continue outside a loop");
    NodePtr node = New(kind);
    PAGODA_RETURN_IF_ERROR(ExpectBlockEnd());
    return node;
  }

  absl::Status EndStatement(absl::string_view word) {
    if (!TakeWord(word)) return Expected(word);
    return ExpectBlockEnd();
  }

  absl::StatusOr<NodePtr> ParseIf() {
    NodePtr node = New(NodeKind::kIf);
    PAGODA_ASSIGN_OR_RETURN(NodePtr condition, ParseTupleOrExpression());
    PAGODA_RETURN_IF_ERROR(ExpectBlockEnd());
    PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({"elif", "else", "endif"}));
    NodePtr otherwise;
    if (TakeWord("elif")) {
      const Depth guard(&depth_);
      if (depth_ > kMaxDepth) return Error("too many elif branches");
      PAGODA_ASSIGN_OR_RETURN(otherwise, ParseIf());
    } else if (TakeWord("else")) {
      PAGODA_RETURN_IF_ERROR(ExpectBlockEnd());
      PAGODA_ASSIGN_OR_RETURN(otherwise, ParseBlock({"endif"}));
      PAGODA_RETURN_IF_ERROR(EndStatement("endif"));
    } else {
      PAGODA_RETURN_IF_ERROR(EndStatement("endif"));
    }
    node->children.push_back(std::move(condition));
    node->children.push_back(std::move(block));
    node->children.push_back(std::move(otherwise));
    return node;
  }

  absl::StatusOr<NodePtr> ParseFor() {
    NodePtr node = New(NodeKind::kFor);
    PAGODA_ASSIGN_OR_RETURN(node->names, ParseTargets());
    if (!TakeWord("in")) return Expected("'in'");
    // Without a conditional: `if` begins the loop's filter.
    PAGODA_ASSIGN_OR_RETURN(NodePtr iterable, ParseTuple(/*with_conditional=*/false));
    NodePtr filter, otherwise;
    if (TakeWord("if")) {
      PAGODA_ASSIGN_OR_RETURN(filter, ParseExpression());
    }
    if (PeekWord("recursive")) return Error("recursive loops are not supported");
    PAGODA_RETURN_IF_ERROR(ExpectBlockEnd());
    ++loop_depth_;
    PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({"else", "endfor"}));
    --loop_depth_;
    if (TakeWord("else")) {
      PAGODA_RETURN_IF_ERROR(ExpectBlockEnd());
      PAGODA_ASSIGN_OR_RETURN(otherwise, ParseBlock({"endfor"}));
    }
    PAGODA_RETURN_IF_ERROR(EndStatement("endfor"));
    for (NodePtr* child : {&iterable, &filter, &block, &otherwise})
      node->children.push_back(std::move(*child));
    return node;
  }

  absl::StatusOr<std::vector<std::string>> ParseTargets() {
    std::vector<std::string> names;
    const bool parenthesis = TakeOp("(");
    do {
      PAGODA_ASSIGN_OR_RETURN(std::string name, ExpectName());
      names.push_back(std::move(name));
    } while (TakeOp(","));
    if (parenthesis) PAGODA_RETURN_IF_ERROR(ExpectOp(")"));
    return names;
  }

  absl::StatusOr<NodePtr> ParseSet() {
    NodePtr node = New(NodeKind::kSet);
    PAGODA_ASSIGN_OR_RETURN(node->names, ParseTargets());
    if (TakeOp(".")) {
      PAGODA_ASSIGN_OR_RETURN(node->name, ExpectName());
    }
    if (TakeOp("=")) {
      PAGODA_ASSIGN_OR_RETURN(NodePtr value, ParseTupleOrExpression());
      PAGODA_RETURN_IF_ERROR(ExpectBlockEnd());
      node->children.push_back(std::move(value));
      return node;
    }
    if (Peek().kind != TokenKind::kBlockEnd) return Expected("'=' or %}");
    PAGODA_RETURN_IF_ERROR(ExpectBlockEnd());
    node->kind = NodeKind::kSetBlock;
    PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({"endset"}));
    PAGODA_RETURN_IF_ERROR(EndStatement("endset"));
    node->children.push_back(std::move(block));
    return node;
  }

  absl::StatusOr<NodePtr> ParseMacro() {
    NodePtr node = New(NodeKind::kMacro);
    PAGODA_ASSIGN_OR_RETURN(node->name, ExpectName());
    PAGODA_RETURN_IF_ERROR(ExpectOp("("));
    std::vector<NodePtr> defaults;
    while (!TakeOp(")")) {
      if (!node->names.empty()) PAGODA_RETURN_IF_ERROR(ExpectOp(","));
      PAGODA_ASSIGN_OR_RETURN(std::string name, ExpectName());
      node->names.push_back(std::move(name));
      if (TakeOp("=")) {
        PAGODA_ASSIGN_OR_RETURN(NodePtr value, ParseExpression());
        defaults.push_back(std::move(value));
      } else if (!defaults.empty()) {
        return Error("a parameter without a default follows one with a default");
      }
    }
    PAGODA_RETURN_IF_ERROR(ExpectBlockEnd());
    const int outer_loops = std::exchange(loop_depth_, 0);
    PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({"endmacro"}));
    loop_depth_ = outer_loops;
    PAGODA_RETURN_IF_ERROR(EndStatement("endmacro"));
    node->children.push_back(std::move(block));
    for (NodePtr& value : defaults) node->children.push_back(std::move(value));
    return node;
  }

  // ---- Expressions, loosest first.
  absl::StatusOr<NodePtr> ParseTupleOrExpression() { return ParseTuple(/*with_conditional=*/true); }

  absl::StatusOr<NodePtr> ParseTuple(bool with_conditional) {
    PAGODA_ASSIGN_OR_RETURN(NodePtr first, with_conditional ? ParseExpression() : ParseOr());
    if (!PeekOp(",")) return first;
    NodePtr tuple = New(NodeKind::kTuple, "", std::move(first));
    while (TakeOp(",")) {
      if (PeekOp(")") || Peek().kind == TokenKind::kBlockEnd ||
          Peek().kind == TokenKind::kOutputEnd)
        break;
      PAGODA_ASSIGN_OR_RETURN(NodePtr item, with_conditional ? ParseExpression() : ParseOr());
      tuple->children.push_back(std::move(item));
    }
    return tuple;
  }

  absl::StatusOr<NodePtr> ParseExpression() {
    const Depth guard(&depth_);
    if (depth_ > kMaxDepth) return Error("nested too deeply");
    PAGODA_ASSIGN_OR_RETURN(NodePtr value, ParseOr());
    while (TakeWord("if")) {
      PAGODA_RETURN_IF_ERROR(CountOperator());
      NodePtr conditional = New(NodeKind::kConditional, "", std::move(value));
      PAGODA_ASSIGN_OR_RETURN(NodePtr condition, ParseOr());
      NodePtr otherwise;
      if (TakeWord("else")) {
        PAGODA_ASSIGN_OR_RETURN(otherwise, ParseExpression());
      }
      conditional->children.push_back(std::move(condition));
      conditional->children.push_back(std::move(otherwise));
      value = std::move(conditional);
    }
    return value;
  }

  using Level = absl::StatusOr<NodePtr> (Parser::*)();

  absl::StatusOr<NodePtr> ParseBinary(Level next,
                                      TokenKind kind,
                                      std::initializer_list<absl::string_view> operators) {
    PAGODA_ASSIGN_OR_RETURN(NodePtr left, (this->*next)());
    while (true) {
      bool found = false;
      for (absl::string_view op : operators) {
        if (!PeekIs(kind, op)) continue;
        ++at_;
        PAGODA_RETURN_IF_ERROR(CountOperator());
        NodePtr binary = New(NodeKind::kBinary, std::string(op), std::move(left));
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
    return ParseBinary(&Parser::ParseAnd, TokenKind::kName, {"or"});
  }
  absl::StatusOr<NodePtr> ParseAnd() {
    return ParseBinary(&Parser::ParseNot, TokenKind::kName, {"and"});
  }

  absl::StatusOr<NodePtr> ParseNot() {
    if (!TakeWord("not")) return ParseComparison();
    const Depth guard(&depth_);
    if (depth_ > kMaxDepth) return Error("nested too deeply");
    PAGODA_ASSIGN_OR_RETURN(NodePtr operand, ParseNot());
    return New(NodeKind::kUnary, "not", std::move(operand));
  }

  // Chained: a < b < c is a < b and b < c.
  absl::StatusOr<NodePtr> ParseComparison() {
    PAGODA_ASSIGN_OR_RETURN(NodePtr left, ParseSum());
    NodePtr chain = New(NodeKind::kBinary, "compare", std::move(left));
    while (true) {
      std::string op;
      for (absl::string_view candidate : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (TakeOp(candidate)) op = std::string(candidate);
        if (!op.empty()) break;
      }
      if (op.empty() && TakeWord("in")) op = "in";
      if (op.empty() && PeekWord("not") && Peek(1).kind == TokenKind::kName &&
          Peek(1).text == "in") {
        at_ += 2;
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
    return ParseBinary(&Parser::ParseConcat, TokenKind::kOperator, {"+", "-"});
  }
  absl::StatusOr<NodePtr> ParseConcat() {
    return ParseBinary(&Parser::ParseProduct, TokenKind::kOperator, {"~"});
  }
  absl::StatusOr<NodePtr> ParseProduct() {
    return ParseBinary(&Parser::ParsePower, TokenKind::kOperator, {"*", "/", "//", "%"});
  }
  absl::StatusOr<NodePtr> ParsePower() {
    return ParseBinary(&Parser::ParseUnary, TokenKind::kOperator, {"**"});
  }

  // A sign binds more tightly than filters and tests, which belong to all of -x.
  absl::StatusOr<NodePtr> ParseUnary() {
    PAGODA_ASSIGN_OR_RETURN(NodePtr operand, ParseSigned());
    return ParseFilters(std::move(operand));
  }

  absl::StatusOr<NodePtr> ParseSigned() {
    for (absl::string_view op : {"-", "+"}) {
      if (!TakeOp(op)) continue;
      const Depth guard(&depth_);
      if (depth_ > kMaxDepth) return Error("nested too deeply");
      PAGODA_ASSIGN_OR_RETURN(NodePtr operand, ParseSigned());
      return New(NodeKind::kUnary, std::string(op), std::move(operand));
    }
    PAGODA_ASSIGN_OR_RETURN(NodePtr primary, ParsePrimary());
    return ParsePostfix(std::move(primary));
  }

  absl::StatusOr<NodePtr> ParsePrimary() {
    const Token& token = Peek();
    NodePtr node = New(NodeKind::kLiteral);
    switch (token.kind) {
      case TokenKind::kString: {
        std::string text = Next().text;
        // Adjacent strings are one.
        while (Peek().kind == TokenKind::kString) text += Next().text;
        node->constant = Value::Trusted(std::move(text));
        return node;
      }
      case TokenKind::kInt: {
        int64_t value = 0;
        if (!absl::SimpleAtoi(token.text, &value))
          return Error(absl::StrCat("the number ", token.text, " is too large"));
        ++at_;
        node->constant = Value::Int(value);
        return node;
      }
      case TokenKind::kFloat: {
        double value = 0;
        if (!absl::SimpleAtod(token.text, &value))
          return Error(absl::StrCat("the number ", token.text, " is malformed"));
        ++at_;
        node->constant = Value::Float(value);
        return node;
      }
      case TokenKind::kName:
        return ParseName();
      default:
        break;
    }
    if (TakeOp("(")) return ParseParenthesis();
    if (TakeOp("[")) return ParseList();
    if (TakeOp("{")) return ParseDict();
    return Expected("an expression");
  }

  absl::StatusOr<NodePtr> ParseName() {
    NodePtr node = New(NodeKind::kLiteral);
    const std::string name = Next().text;
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
    if (TakeOp(")")) return New(NodeKind::kTuple);
    PAGODA_ASSIGN_OR_RETURN(NodePtr inner, ParseTupleOrExpression());
    PAGODA_RETURN_IF_ERROR(ExpectOp(")"));
    return inner;
  }

  absl::StatusOr<NodePtr> ParseList() {
    NodePtr list = New(NodeKind::kList);
    while (!TakeOp("]")) {
      if (!list->children.empty()) {
        PAGODA_RETURN_IF_ERROR(ExpectOp(","));
        if (TakeOp("]")) break;
      }
      PAGODA_ASSIGN_OR_RETURN(NodePtr item, ParseExpression());
      list->children.push_back(std::move(item));
    }
    return list;
  }

  absl::StatusOr<NodePtr> ParseDict() {
    NodePtr dict = New(NodeKind::kDict);
    while (!TakeOp("}")) {
      if (!dict->children.empty()) {
        PAGODA_RETURN_IF_ERROR(ExpectOp(","));
        if (TakeOp("}")) break;
      }
      PAGODA_ASSIGN_OR_RETURN(NodePtr key, ParseExpression());
      PAGODA_RETURN_IF_ERROR(ExpectOp(":"));
      PAGODA_ASSIGN_OR_RETURN(NodePtr value, ParseExpression());
      dict->children.push_back(std::move(key));
      dict->children.push_back(std::move(value));
    }
    return dict;
  }

  // .name, [index], (arguments). The chain is a loop, but its tree is as deep as it is long.
  absl::StatusOr<NodePtr> ParsePostfix(NodePtr node) {
    for (int length = 0;; ++length) {
      if (length > 0) PAGODA_RETURN_IF_ERROR(CountOperator());
      if (length > kMaxDepth) return Error("an expression is too long");
      if (TakeOp(".")) {
        if (Peek().kind == TokenKind::kInt) {
          NodePtr subscript = New(NodeKind::kSubscript, "", std::move(node));
          PAGODA_ASSIGN_OR_RETURN(NodePtr index, ParsePrimary());
          subscript->children.push_back(std::move(index));
          node = std::move(subscript);
          continue;
        }
        PAGODA_ASSIGN_OR_RETURN(std::string name, ExpectName());
        node = New(NodeKind::kAttribute, std::move(name), std::move(node));
      } else if (TakeOp("[")) {
        PAGODA_ASSIGN_OR_RETURN(node, ParseSubscript(std::move(node)));
      } else if (TakeOp("(")) {
        node = New(NodeKind::kCall, "", std::move(node));
        PAGODA_RETURN_IF_ERROR(ParseArguments(node.get()));
      } else {
        return node;
      }
    }
  }

  // | filter, is test, (arguments) of what they give.
  absl::StatusOr<NodePtr> ParseFilters(NodePtr node) {
    for (int length = 0;; ++length) {
      if (length > 0) PAGODA_RETURN_IF_ERROR(CountOperator());
      if (length > kMaxDepth) return Error("an expression is too long");
      if (TakeOp("|")) {
        PAGODA_ASSIGN_OR_RETURN(std::string name, ExpectName());
        if (!IsFilter(name)) return Error(absl::StrCat("no filter named '", name, "'"));
        node = New(NodeKind::kFilter, std::move(name), std::move(node));
        if (TakeOp("(")) PAGODA_RETURN_IF_ERROR(ParseArguments(node.get()));
      } else if (TakeWord("is")) {
        PAGODA_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
      } else if (TakeOp("(")) {
        node = New(NodeKind::kCall, "", std::move(node));
        PAGODA_RETURN_IF_ERROR(ParseArguments(node.get()));
      } else {
        return node;
      }
    }
  }

  absl::StatusOr<NodePtr> ParseTest(NodePtr operand) {
    const bool negated = TakeWord("not");
    PAGODA_ASSIGN_OR_RETURN(std::string name, ExpectName());
    if (!IsPredicate(name)) return Error(absl::StrCat("no test named '", name, "'"));
    NodePtr node = New(NodeKind::kTest, std::move(name), std::move(operand));
    node->negated = negated;
    if (TakeOp("(")) {
      PAGODA_RETURN_IF_ERROR(ParseArguments(node.get()));
    } else if (Peek().kind == TokenKind::kString || Peek().kind == TokenKind::kInt ||
               Peek().kind == TokenKind::kFloat || PeekOp("[") || PeekOp("{") ||
               (Peek().kind == TokenKind::kName && !PeekWord("else") && !PeekWord("or") &&
                !PeekWord("and") && !PeekWord("if") && !PeekWord("is") && !PeekWord("in") &&
                !PeekWord("not"))) {
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
      if (!PeekOp(":") && !PeekOp("]")) {
        PAGODA_ASSIGN_OR_RETURN(parts[i], ParseExpression());
      }
      if (!TakeOp(":")) break;
      is_slice = true;
    }
    PAGODA_RETURN_IF_ERROR(ExpectOp("]"));
    NodePtr node = New(is_slice ? NodeKind::kSlice : NodeKind::kSubscript, "", std::move(object));
    if (!is_slice && parts[0] == nullptr) return Expected("an index");
    node->children.push_back(std::move(parts[0]));
    if (is_slice) {
      node->children.push_back(std::move(parts[1]));
      node->children.push_back(std::move(parts[2]));
    }
    return node;
  }

  absl::Status ParseArguments(Node* call) {
    bool first = true;
    while (!TakeOp(")")) {
      if (!first) {
        PAGODA_RETURN_IF_ERROR(ExpectOp(","));
        if (TakeOp(")")) break;
      }
      first = false;
      if (PeekOp("*") || PeekOp("**")) return Error("unpacked arguments are not supported");
      if (Peek().kind == TokenKind::kName && Peek(1).kind == TokenKind::kOperator &&
          Peek(1).text == "=") {
        call->names.push_back(Next().text);
        ++at_;
      } else if (!call->names.empty()) {
        return Error("a positional argument follows a keyword argument");
      }
      PAGODA_ASSIGN_OR_RETURN(NodePtr argument, ParseExpression());
      call->children.push_back(std::move(argument));
    }
    return absl::OkStatus();
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loop_depth_ = 0;
  int num_operators_ = 0;  // of one statement
};

}  // namespace

absl::StatusOr<NodePtr> Parse(absl::string_view source) {
  PAGODA_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace pagoda::engine::jinja
