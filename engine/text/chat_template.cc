#include "engine/text/chat_template.h"

#include <utility>

#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/parser.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace pagoda::engine {
namespace {

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(jinja::NodePtr root, jinja::Dict special_tokens)
      : root_(std::move(root)), special_tokens_(std::move(special_tokens)) {}

  absl::StatusOr<RenderedChat> Render(const ChatInput& input) const override {
    jinja::Dict globals = special_tokens_;
    globals.Set("messages", jinja::Value::FromJson(*input.messages));
    globals.Set(
        "tools",
        input.tools != nullptr ? jinja::Value::FromJson(*input.tools) : jinja::Value::NoneValue());
    globals.Set("documents", jinja::Value::NoneValue());
    globals.Set("add_generation_prompt", jinja::Value::Bool(input.add_generation_prompt));
    PAGODA_ASSIGN_OR_RETURN(jinja::MarkedString rendered,
                            jinja::Render(*root_, globals, {.now_seconds = input.now_seconds}));
    return RenderedChat{std::move(rendered.text), std::move(rendered.trusted)};
  }

 private:
  jinja::NodePtr root_;
  jinja::Dict special_tokens_;
};

// A special token is a string or an AddedToken object.
const std::string* TokenText(const nlohmann::ordered_json& token) {
  if (token.is_string()) return token.get_ptr<const std::string*>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get_ptr<const std::string*>();
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Compile(
    absl::string_view source, const nlohmann::ordered_json& special_tokens) {
  PAGODA_ASSIGN_OR_RETURN(jinja::NodePtr root, jinja::Parse(source));
  jinja::Dict globals;
  if (special_tokens.is_object()) {
    for (const auto& [name, token] : special_tokens.items()) {
      const bool is_token = name.size() > 6 && name.compare(name.size() - 6, 6, "_token") == 0;
      if (const std::string* text = is_token ? TokenText(token) : nullptr) {
        globals.Set(name, jinja::Value::Trusted(*text));
      }
    }
  }
  return std::make_unique<JinjaChatTemplate>(std::move(root), std::move(globals));
}

}  // namespace pagoda::engine
