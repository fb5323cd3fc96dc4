#include "daemon/openai/output_parser.h"

#include <algorithm>
#include <utility>

#include "daemon/openai/reasoning_parser.h"
#include "daemon/openai/tool_parser.h"

namespace pagoda::daemon::openai {
namespace {

// Thoughts first, then what follows them.
class ChatOutputParser final : public OutputParser {
 public:
  ChatOutputParser(const OutputShape& shape, ReasoningMode reasoning)
      : reasoning_(reasoning), tools_(MakeToolParser(shape)) {}

  void Feed(absl::string_view text, ParsedOutput* out) override {
    std::string rest;
    reasoning_.Feed(text, &out->reasoning, &rest);
    tools_->Feed(rest, out);
  }

  void Finish(ParsedOutput* out) override {
    std::string rest;
    reasoning_.Finish(&out->reasoning, &rest);
    tools_->Feed(rest, out);
    tools_->Finish(out);
  }

  size_t num_calls() const override { return tools_->num_calls(); }
  size_t thought_bytes() const override { return reasoning_.thought_bytes(); }
  bool may_think() const override { return reasoning_.may_think(); }

 private:
  ReasoningParser reasoning_;
  const std::unique_ptr<OutputParser> tools_;
};

}  // namespace

std::unique_ptr<OutputParser> MakeOutputParser(const OutputShape& shape, ReasoningMode reasoning) {
  const bool has_form = shape.is_constrained || shape.requires_calls || !shape.forced_tool.empty();
  return std::make_unique<ChatOutputParser>(shape, has_form ? ReasoningMode::kNone : reasoning);
}

}  // namespace pagoda::daemon::openai
