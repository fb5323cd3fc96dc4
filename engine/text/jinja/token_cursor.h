#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/lexer.h"

namespace pagoda::engine::jinja {

// Nesting of a template, of expressions and statements together: deeper ones are refused, since
// parsing recurses.
inline constexpr int kMaxDepth = 200;
// Operators in a row nest to the left: their tree is as high as they are many.
inline constexpr int kMaxOperators = 1000;

// The tokens of a template on their way through its parsers, and the limits of what these make.
// Thread-compatible.
class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // The last token stays the last however often it is taken.
  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& Next() { return tokens_[std::min(at_++, tokens_.size() - 1)]; }
  void Skip(size_t count = 1) { at_ += count; }
  bool PeekIs(TokenKind kind, absl::string_view text) const {
    return Peek().kind == kind && Peek().text == text;
  }
  bool PeekOp(absl::string_view op) const { return PeekIs(TokenKind::kOperator, op); }
  bool PeekWord(absl::string_view word) const { return PeekIs(TokenKind::kName, word); }
  bool TakeOp(absl::string_view op) { return PeekOp(op) && (++at_, true); }
  bool TakeWord(absl::string_view word) { return PeekWord(word) && (++at_, true); }
  absl::Status ExpectOp(absl::string_view op);
  absl::Status ExpectBlockEnd();
  absl::StatusOr<std::string> ExpectName();

  // INVALID_ARGUMENT with the line of the next token.
  absl::Status Error(absl::string_view what) const;
  absl::Status Expected(absl::string_view what) const;

  // Of the line of the next token.
  NodePtr New(NodeKind kind) const;
  NodePtr New(NodeKind kind, std::string name, NodePtr child) const;

  // Counts nesting for as long as it lives.
  class Depth {
   public:
    explicit Depth(TokenCursor* cursor) : cursor_(cursor) { ++cursor_->depth_; }
    ~Depth() { --cursor_->depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    bool is_too_deep() const { return cursor_->depth_ > kMaxDepth; }

   private:
    TokenCursor* const cursor_;
  };
  absl::Status CountOperator();
  void BeginStatement() { num_operators_ = 0; }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int num_operators_ = 0;  // of one statement
};

}  // namespace pagoda::engine::jinja
