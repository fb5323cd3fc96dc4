#include "engine/text/jinja/parser.h"

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/expression_parser.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/token_cursor.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine::jinja {
namespace {

class StatementParser {
 public:
  explicit StatementParser(TokenCursor* cursor) : cursor_(cursor) {}

  // Up to a block tag whose word is in `ends` (left to the caller, past "{%"), or to the end where
  // there is none.
  absl::StatusOr<NodePtr> ParseBlock(std::initializer_list<absl::string_view> ends) {
    const TokenCursor::Depth depth(cursor_);
    if (depth.is_too_deep()) return cursor_->Error("nested too deeply");
    NodePtr block = cursor_->New(NodeKind::kBlock);
    while (true) {
      cursor_->BeginStatement();
      const Token& token = cursor_->Peek();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() > 0)
          return cursor_->Error(absl::StrCat("missing {% ", *(ends.end() - 1), " %}"));
        return block;
      }
      if (token.kind == TokenKind::kText) {
        NodePtr text = cursor_->New(NodeKind::kText);
        text->constant = Value::Trusted(cursor_->Next().text);
        block->children.push_back(std::move(text));
      } else if (token.kind == TokenKind::kOutputBegin) {
        cursor_->Skip();
        PAGODA_ASSIGN_OR_RETURN(NodePtr expression, ParseTuple(cursor_, /*with_conditional=*/true));
        if (cursor_->Peek().kind != TokenKind::kOutputEnd) return cursor_->Expected("}}");
        cursor_->Skip();
        block->children.push_back(cursor_->New(NodeKind::kOutput, "", std::move(expression)));
      } else {
        cursor_->Skip();
        for (absl::string_view end : ends) {
          if (cursor_->PeekWord(end)) return block;
        }
        PAGODA_ASSIGN_OR_RETURN(NodePtr statement, ParseStatement());
        block->children.push_back(std::move(statement));
      }
    }
  }

 private:
  absl::StatusOr<NodePtr> ParseStatement() {
    if (cursor_->TakeWord("if")) return ParseIf();
    if (cursor_->TakeWord("for")) return ParseFor();
    if (cursor_->TakeWord("set")) return ParseSet();
    if (cursor_->TakeWord("macro")) return ParseMacro();
    if (cursor_->TakeWord("break")) return ParseWordStatement(NodeKind::kBreak);
    if (cursor_->TakeWord("continue")) return ParseWordStatement(NodeKind::kContinue);
    // Marks which text the assistant wrote, for training; nothing to do here.
    if (cursor_->TakeWord("generation")) {
      PAGODA_RETURN_IF_ERROR(cursor_->ExpectBlockEnd());
      PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({"endgeneration"}));
      PAGODA_RETURN_IF_ERROR(EndStatement("endgeneration"));
      return block;
    }
    return cursor_->Error(
        absl::StrCat("the statement '", cursor_->Peek().text, "' is not supported"));
  }

  absl::StatusOr<NodePtr> ParseWordStatement(NodeKind kind) {
    if (loop_depth_ == 0) return cursor_->Error("break or continue outside a loop");
    NodePtr node = cursor_->New(kind);
    PAGODA_RETURN_IF_ERROR(cursor_->ExpectBlockEnd());
    return node;
  }

  absl::Status EndStatement(absl::string_view word) {
    if (!cursor_->TakeWord(word)) return cursor_->Expected(word);
    return cursor_->ExpectBlockEnd();
  }

  absl::StatusOr<NodePtr> ParseIf() {
    NodePtr node = cursor_->New(NodeKind::kIf);
    PAGODA_ASSIGN_OR_RETURN(NodePtr condition, ParseTuple(cursor_, /*with_conditional=*/true));
    PAGODA_RETURN_IF_ERROR(cursor_->ExpectBlockEnd());
    PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({"elif", "else", "endif"}));
    NodePtr otherwise;
    if (cursor_->TakeWord("elif")) {
      const TokenCursor::Depth depth(cursor_);
      if (depth.is_too_deep()) return cursor_->Error("too many elif branches");
      PAGODA_ASSIGN_OR_RETURN(otherwise, ParseIf());
    } else if (cursor_->TakeWord("else")) {
      PAGODA_RETURN_IF_ERROR(cursor_->ExpectBlockEnd());
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
    NodePtr node = cursor_->New(NodeKind::kFor);
    PAGODA_ASSIGN_OR_RETURN(node->names, ParseTargets());
    if (!cursor_->TakeWord("in")) return cursor_->Expected("'in'");
    // Without a conditional: `if` begins the loop's filter.
    PAGODA_ASSIGN_OR_RETURN(NodePtr iterable, ParseTuple(cursor_, /*with_conditional=*/false));
    NodePtr filter, otherwise;
    if (cursor_->TakeWord("if")) {
      PAGODA_ASSIGN_OR_RETURN(filter, ParseExpression(cursor_));
    }
    if (cursor_->PeekWord("recursive")) return cursor_->Error("recursive loops are not supported");
    PAGODA_RETURN_IF_ERROR(cursor_->ExpectBlockEnd());
    ++loop_depth_;
    PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({"else", "endfor"}));
    --loop_depth_;
    if (cursor_->TakeWord("else")) {
      PAGODA_RETURN_IF_ERROR(cursor_->ExpectBlockEnd());
      PAGODA_ASSIGN_OR_RETURN(otherwise, ParseBlock({"endfor"}));
    }
    PAGODA_RETURN_IF_ERROR(EndStatement("endfor"));
    for (NodePtr* child : {&iterable, &filter, &block, &otherwise})
      node->children.push_back(std::move(*child));
    return node;
  }

  absl::StatusOr<std::vector<std::string>> ParseTargets() {
    std::vector<std::string> names;
    const bool parenthesis = cursor_->TakeOp("(");
    do {
      PAGODA_ASSIGN_OR_RETURN(std::string name, cursor_->ExpectName());
      names.push_back(std::move(name));
    } while (cursor_->TakeOp(","));
    if (parenthesis) PAGODA_RETURN_IF_ERROR(cursor_->ExpectOp(")"));
    return names;
  }

  absl::StatusOr<NodePtr> ParseSet() {
    NodePtr node = cursor_->New(NodeKind::kSet);
    PAGODA_ASSIGN_OR_RETURN(node->names, ParseTargets());
    if (cursor_->TakeOp(".")) {
      PAGODA_ASSIGN_OR_RETURN(node->name, cursor_->ExpectName());
    }
    if (cursor_->TakeOp("=")) {
      PAGODA_ASSIGN_OR_RETURN(NodePtr value, ParseTuple(cursor_, /*with_conditional=*/true));
      PAGODA_RETURN_IF_ERROR(cursor_->ExpectBlockEnd());
      node->children.push_back(std::move(value));
      return node;
    }
    if (cursor_->Peek().kind != TokenKind::kBlockEnd) return cursor_->Expected("'=' or %}");
    PAGODA_RETURN_IF_ERROR(cursor_->ExpectBlockEnd());
    node->kind = NodeKind::kSetBlock;
    PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({"endset"}));
    PAGODA_RETURN_IF_ERROR(EndStatement("endset"));
    node->children.push_back(std::move(block));
    return node;
  }

  absl::StatusOr<NodePtr> ParseMacro() {
    NodePtr node = cursor_->New(NodeKind::kMacro);
    PAGODA_ASSIGN_OR_RETURN(node->name, cursor_->ExpectName());
    PAGODA_RETURN_IF_ERROR(cursor_->ExpectOp("("));
    std::vector<NodePtr> defaults;
    while (!cursor_->TakeOp(")")) {
      if (!node->names.empty()) PAGODA_RETURN_IF_ERROR(cursor_->ExpectOp(","));
      PAGODA_ASSIGN_OR_RETURN(std::string name, cursor_->ExpectName());
      node->names.push_back(std::move(name));
      if (cursor_->TakeOp("=")) {
        PAGODA_ASSIGN_OR_RETURN(NodePtr value, ParseExpression(cursor_));
        defaults.push_back(std::move(value));
      } else if (!defaults.empty()) {
        return cursor_->Error("a parameter without a default follows one with a default");
      }
    }
    PAGODA_RETURN_IF_ERROR(cursor_->ExpectBlockEnd());
    const int outer_loops = std::exchange(loop_depth_, 0);
    PAGODA_ASSIGN_OR_RETURN(NodePtr block, ParseBlock({"endmacro"}));
    loop_depth_ = outer_loops;
    PAGODA_RETURN_IF_ERROR(EndStatement("endmacro"));
    node->children.push_back(std::move(block));
    for (NodePtr& value : defaults) node->children.push_back(std::move(value));
    return node;
  }

  TokenCursor* const cursor_;
  int loop_depth_ = 0;
};

}  // namespace

absl::StatusOr<NodePtr> Parse(absl::string_view source) {
  PAGODA_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  TokenCursor cursor(std::move(tokens));
  return StatementParser(&cursor).ParseBlock({});
}

}  // namespace pagoda::engine::jinja
