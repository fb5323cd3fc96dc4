#include "engine/text/chat_template.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/parser.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace pagoda::engine {
namespace {

using nlohmann::ordered_json;

// Steps beyond those that every rendering may take: enough for each byte to be copied some thirty
// times (one step is 16 bytes), so that long chats do not look like bombs.
int64_t StepsForInput(const ordered_json& value) {
  if (value.is_string())
    return 2 * static_cast<int64_t>(value.get_ref<const std::string&>().size());
  int64_t steps = 32;
  if (value.is_structured()) {
    for (const auto& child : value) steps += StepsForInput(child);
  }
  return steps;
}

// The last message's text; null when it has none.
const std::string* FinalText(const ordered_json& messages) {
  if (messages.empty() || !messages.back().is_object()) return nullptr;
  const auto content = messages.back().find("content");
  if (content == messages.back().end()) return nullptr;
  if (content->is_string()) return content->get_ptr<const std::string*>();
  if (!content->is_array()) return nullptr;
  for (auto part = content->rbegin(); part != content->rend(); ++part) {
    if (part->is_object() && part->contains("text") && (*part)["text"].is_string())
      return (*part)["text"].get_ptr<const std::string*>();
  }
  return nullptr;
}

// Cuts what the template wrote after the last message's text, as the reference library does: the
// text's own trailing white space stays where the template kept it.
absl::Status CutAfterFinalText(const ordered_json& messages, jinja::MarkedString* rendered) {
  const std::string* text = FinalText(messages);
  if (text == nullptr)
    return absl::InvalidArgumentError("the last message has no text that could be continued");
  const absl::string_view stripped = absl::StripAsciiWhitespace(*text);
  const absl::string_view with_tail = absl::StripLeadingAsciiWhitespace(*text);
  const size_t at = absl::string_view(rendered->text).rfind(stripped);
  if (at == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        "the chat template changes the last message's text, so it cannot be continued");
  }
  const bool keeps_tail = absl::StartsWith(absl::string_view(rendered->text).substr(at), with_tail);
  const size_t end = at + (keeps_tail ? with_tail.size() : stripped.size());
  rendered->text.resize(end);
  rendered->trusted.resize(end);
  return absl::OkStatus();
}

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(jinja::NodePtr root, jinja::Dict special_tokens)
      : root_(std::move(root)), special_tokens_(std::move(special_tokens)) {
    takes_content_parts_ = ProbeContentParts();
  }

  absl::StatusOr<RenderedChat> Render(const ChatInput& input) const override {
    jinja::Dict globals = special_tokens_;
    jinja::RenderLimits limits;
    limits.now_seconds = input.now_seconds;
    limits.max_steps += StepsForInput(*input.messages);
    globals.Set("messages", jinja::Value::FromJson(*input.messages));
    globals.Set("tools", jinja::Value::NoneValue());
    if (input.tools != nullptr) {
      globals.Set("tools", jinja::Value::FromJson(*input.tools));
      limits.max_steps += StepsForInput(*input.tools);
    }
    globals.Set("documents", jinja::Value::NoneValue());
    globals.Set("add_generation_prompt", jinja::Value::Bool(input.add_generation_prompt));
    if (input.arguments != nullptr) {
      for (const auto& [name, value] : input.arguments->items()) {
        if (globals.Find(name) != nullptr) {
          return absl::InvalidArgumentError(
              absl::StrCat("template argument \"", name, "\" is set by the server"));
        }
        globals.Set(name, jinja::Value::FromJson(value));
      }
    }
    PAGODA_ASSIGN_OR_RETURN(jinja::MarkedString rendered, jinja::Render(*root_, globals, limits));
    if (input.continue_final_message)
      PAGODA_RETURN_IF_ERROR(CutAfterFinalText(*input.messages, &rendered));
    return RenderedChat{std::move(rendered.text), std::move(rendered.trusted)};
  }

  bool takes_content_parts() const override { return takes_content_parts_; }

 private:
  // Renders a message of one part: a template that reads parts writes its text and no name of a
  // member.
  bool ProbeContentParts() const {
    constexpr absl::string_view kText = "pagoda-probe";
    const ordered_json part = {{"type", "text"}, {"text", std::string(kText)}};
    const ordered_json messages =
        ordered_json::array({{{"role", "user"}, {"content", ordered_json::array({part})}}});
    const auto rendered = Render({.messages = &messages});
    return rendered.ok() && absl::StrContains(rendered->text, kText) &&
           !absl::StrContains(rendered->text, "'text'") &&
           !absl::StrContains(rendered->text, "\"text\"");
  }

  jinja::NodePtr root_;
  jinja::Dict special_tokens_;
  bool takes_content_parts_ = false;
};

// A special token is a string or an AddedToken object.
const std::string* TokenText(const ordered_json& token) {
  if (token.is_string()) return token.get_ptr<const std::string*>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get_ptr<const std::string*>();
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Compile(
    absl::string_view source, const ordered_json& special_tokens) {
  PAGODA_ASSIGN_OR_RETURN(jinja::NodePtr root, jinja::Parse(source));
  jinja::Dict globals;
  if (special_tokens.is_object()) {
    for (const auto& [name, token] : special_tokens.items()) {
      const bool is_token = name.size() > 6 && absl::EndsWith(name, "_token");
      if (const std::string* text = is_token ? TokenText(token) : nullptr) {
        globals.Set(name, jinja::Value::Trusted(*text));
      }
    }
  }
  return std::make_unique<JinjaChatTemplate>(std::move(root), std::move(globals));
}

}  // namespace pagoda::engine
