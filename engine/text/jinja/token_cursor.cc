#include "engine/text/jinja/token_cursor.h"

#include <memory>

#include "absl/strings/str_cat.h"

namespace pagoda::engine::jinja {

absl::Status TokenCursor::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("chat template, line ", Peek().line, ": ", what));
}

absl::Status TokenCursor::Expected(absl::string_view what) const {
  const std::string found =
      Peek().text.empty() ? "the end of the tag" : absl::StrCat("'", Peek().text, "'");
  return Error(absl::StrCat("expected ", what, ", found ", found));
}

absl::Status TokenCursor::ExpectOp(absl::string_view op) {
  return TakeOp(op) ? absl::OkStatus() : Expected(absl::StrCat("'", op, "'"));
}

absl::Status TokenCursor::ExpectBlockEnd() {
  if (Peek().kind != TokenKind::kBlockEnd) return Expected("%}");
  ++at_;
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenCursor::ExpectName() {
  if (Peek().kind != TokenKind::kName) return Expected("a name");
  return Next().text;
}

NodePtr TokenCursor::New(NodeKind kind) const {
  NodePtr node = std::make_unique<Node>();
  node->kind = kind;
  node->line = Peek().line;
  return node;
}

NodePtr TokenCursor::New(NodeKind kind, std::string name, NodePtr child) const {
  NodePtr node = New(kind);
  node->name = std::move(name);
  node->children.push_back(std::move(child));
  return node;
}

absl::Status TokenCursor::CountOperator() {
  if (++num_operators_ > kMaxOperators) return Error("an expression is too long");
  return absl::OkStatus();
}

}  // namespace pagoda::engine::jinja
